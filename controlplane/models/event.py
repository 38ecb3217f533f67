"""An event: the record of one change, made by a caller, a client or the platform."""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from controlplane import clock
from controlplane.actors import ActorType
from controlplane.models.account import Account
from controlplane.models.rules import index, one_of


class TransactionId(models.Field):  # type: ignore[type-arg] # generic for mypy alone
    """Postgres's xid8: the number of a transaction, which is never reused."""

    def db_type(self, connection: Any) -> str:
        return "xid8"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> int | None:
        return None if value is None else int(value)


class Event(models.Model):
    """Written in the transaction of the change that it describes, and never changed.

    It has no foreign keys to the project, branch or endpoint, because it outlives them. Ids are
    assigned when rows are inserted, but rows become visible when they are committed, so a row with
    a smaller id may become visible later. Readers that continue from a position therefore read in
    the order of (transaction, id), and only rows whose transaction is older than all transactions
    in progress: no row before these can become visible later.
    """

    # None for an event that belongs to no account: a refused unknown API key, a webhook's test.
    account = models.ForeignKey(
        Account, null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    transaction = TransactionId(
        db_default=models.Func(function="pg_current_xact_id"), editable=False
    )
    type = models.CharField(max_length=48)
    project_id = models.CharField(max_length=60, null=True)
    branch_id = models.CharField(max_length=60, null=True)
    endpoint_id = models.CharField(max_length=60, null=True)
    operation_ids = ArrayField(models.UUIDField(), default=list)
    actor_type = models.CharField(max_length=16)
    actor_name = models.CharField(max_length=200, default="")
    api_key_id = models.BigIntegerField(null=True)
    # The actor's IP address; "" if it is not known.
    address = models.CharField(max_length=64, default="")
    at = models.DateTimeField(default=clock.now)
    # One sentence for people. It never contains a secret.
    summary = models.TextField()
    # By field, {"from": …, "to": …}. Of secrets it says at most that they changed.
    changes = models.JSONField(default=dict)
    # Of an event about an operation: its {"id", "action", "error", "duration_ms"}.
    operation = models.JSONField(null=True)

    class Meta:
        constraints = (one_of("event_actor_is_known", "actor_type", *map(str, ActorType)),)
        indexes = (
            # For the lists, one for each usual filter.
            index("account_events", "account", "-at", "-id"),
            index("account_events_by_type", "account", "type", "-at", "-id"),
            index("account_events_by_actor", "account", "actor_type", "-at", "-id"),
            index("project_events", "project_id", "-at", "-id"),
            index("project_events_by_type", "project_id", "type", "-at", "-id"),
            index("project_events_by_actor", "project_id", "actor_type", "-at", "-id"),
            index("branch_events", "branch_id", "-at", "-id", branch_id__isnull=False),
            index("endpoint_events", "endpoint_id", "-at", "-id", endpoint_id__isnull=False),
            GinIndex(name="operation_events", fields=["operation_ids"]),
            # For the streams: of all accounts, and of one that continues from a position.
            index("events_in_order", "transaction", "id"),
            index("account_events_in_order", "account", "transaction", "id"),
            # For the removal of old events.
            index("events_by_time", "at"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
