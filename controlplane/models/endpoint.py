"""A compute endpoint: what clients connect to (specification, sections 2.1 and 3.1).

`ATTRIBUTES` declares the attributes that callers choose. Requests, responses, the document of the
API, events and operations derive from it which attributes there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.names import new_endpoint_id
from controlplane.models.project import (
    DEFAULT_PROVISIONER,
    PROVISIONERS,
    Project,
    host_of_project,
)
from controlplane.models.rules import DELETED, LIVING, index, one_of, unique


class EndpointState(models.TextChoices):
    INIT = "init", "Just created; its first start is not over"
    ACTIVE = "active", "Its Postgres runs"
    IDLE = "idle", "Suspended: no process, no memory"


class EndpointType(models.TextChoices):
    READ_WRITE = "read_write", "Reads and writes"


class PoolerMode(models.TextChoices):
    TRANSACTION = "transaction", "A server connection for each transaction"


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An attribute that callers choose. The field of `Endpoint` with its name stores it, and has
    its default."""

    name: str
    kind: type[bool] | type[int] | type[float] | type[str] | type[dict[str, Any]]
    # For the API's document. A description that begins with "Stored" says that it has no effect.
    description: str
    example: Any
    # The bounds of a number. Of a text, `most` is the number of characters.
    least: float | None = None
    most: float | None = None
    # The only values that a text may have; any if empty.
    values: tuple[str, ...] = ()
    # Responses leave it out while it is not set.
    is_optional: bool = False
    # The compute must apply it: a change of it takes an operation.
    is_applied: bool = False
    # A project's `default_endpoint_settings` may have it.
    in_defaults: bool = False
    # The event of an endpoint's creation has it. Events of changes have every attribute.
    in_creation_event: bool = False


_DECLARED = (
    Attribute(
        name="autoscaling_limit_min_cu",
        kind=float,
        least=0.25,
        most=56,
        description="The minimum size in compute units; one unit is a CPU and 4 GB of memory",
        example=0.25,
        is_applied=True,
        in_defaults=True,
        in_creation_event=True,
    ),
    Attribute(
        name="autoscaling_limit_max_cu",
        kind=float,
        least=0.25,
        most=56,
        description="The maximum size in compute units; one unit is a CPU and 4 GB of memory",
        example=1.0,
        is_applied=True,
        in_defaults=True,
        in_creation_event=True,
    ),
    # {pg_settings: {name: value}, pgbouncer_settings: {name: value}}
    Attribute(
        name="settings",
        kind=dict,
        description="`pg_settings`: settings of Postgres",
        example={"pg_settings": {}},
        is_applied=True,
    ),
    Attribute(
        name="pooler_enabled",
        kind=bool,
        description="Whether all connections are pooled; with `-pooler` in the host name, a "
        "single connection is",
        example=False,
        is_applied=True,
    ),
    Attribute(
        name="pooler_mode",
        kind=str,
        values=tuple(PoolerMode.values),
        description="Always `transaction`",
        example="transaction",
    ),
    Attribute(
        name="disabled",
        kind=bool,
        description="Whether it is disabled: clients cannot connect to it or start it",
        example=False,
    ),
    Attribute(
        name="passwordless_access",
        kind=bool,
        description="Stored and returned, without effect: clients always need a password",
        example=True,
    ),
    Attribute(
        name="suspend_timeout_seconds",
        kind=int,
        least=-1,
        most=604800,
        description="Seconds without activity after which it is suspended; 0: the service's "
        "default, -1: never",
        example=300,
        in_defaults=True,
    ),
    Attribute(
        name="ignore_heartbeats",
        kind=bool,
        description="Whether what idle sessions did counts as activity only if it read or wrote a "
        "table, so that heartbeats such as `SELECT 1` do not keep the endpoint active",
        example=False,
        in_defaults=True,
    ),
    Attribute(
        name="provisioner",
        kind=str,
        values=PROVISIONERS,
        description="Stored and returned, without effect: computes are processes of the server's "
        "host",
        example=DEFAULT_PROVISIONER,
    ),
    Attribute(
        name="name",
        kind=str,
        most=64,
        description="A name that the caller chose",
        example=None,
        is_optional=True,
        in_creation_event=True,
    ),
)
ATTRIBUTES: Mapping[str, Attribute] = {one.name: one for one in _DECLARED}
# The attributes that the compute must apply, by name.
Configuration = Mapping[str, Any]
APPLIED = tuple(one.name for one in _DECLARED if one.is_applied)


class Endpoint(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_endpoint_id)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="endpoints")
    host = host_of_project()
    branch = models.ForeignKey(Branch, on_delete=models.PROTECT, related_name="endpoints")
    name = models.CharField(max_length=64, null=True)
    type = models.CharField(
        max_length=16, choices=EndpointType.choices, default=EndpointType.READ_WRITE
    )
    autoscaling_limit_min_cu = models.FloatField(default=0.25)
    autoscaling_limit_max_cu = models.FloatField(default=1)
    settings = models.JSONField(default=dict)
    pooler_enabled = models.BooleanField(default=False)
    pooler_mode = models.CharField(
        max_length=16, choices=PoolerMode.choices, default=PoolerMode.TRANSACTION
    )
    disabled = models.BooleanField(default=False)
    passwordless_access = models.BooleanField(default=True)
    provisioner = models.CharField(max_length=32, default=DEFAULT_PROVISIONER)
    suspend_timeout_seconds = models.IntegerField(default=0)
    ignore_heartbeats = models.BooleanField(default=False, db_default=False)
    current_state = models.CharField(
        max_length=8, choices=EndpointState.choices, default=EndpointState.INIT
    )
    last_active = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    suspended_at = models.DateTimeField(null=True)
    # The release of Postgres that its compute ran when it was last looked at, such as "18.6".
    pg_release = models.CharField(max_length=32, default="", db_default="")
    # How often its compute was started.
    starts = models.BigIntegerField(default=0, db_default=0)
    # The round of availability checks looks at the endpoint from then on, or soon if there is none:
    # its next check is not due before. A trigger removes it when a use makes the check due earlier.
    check_due_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    deleted_at = models.DateTimeField(null=True)

    # The state that its unfinished operations lead to. Not stored, because it follows from them;
    # set by services that need it. None if nothing is pending or no service has set it.
    pending_state: EndpointState | None = None

    class Meta:
        constraints = (
            unique("one_endpoint_per_branch", "branch", **LIVING),
            one_of("endpoint_state_is_known", "current_state", *EndpointState.values),
            one_of("endpoint_type_is_known", "type", *EndpointType.values),
            one_of("endpoint_pooler_mode_is_known", "pooler_mode", *PoolerMode.values),
            models.CheckConstraint(
                name="endpoint_limits_are_ordered",
                condition=models.Q(
                    autoscaling_limit_min_cu__gte=0.25,
                    autoscaling_limit_max_cu__gte=models.F("autoscaling_limit_min_cu"),
                ),
            ),
        )
        indexes = (
            index("endpoints_of_a_project", "project", "created_at", **LIVING),
            # For the rounds, which read the active endpoints: there may be a thousand idle ones for
            # each active one.
            index("active_endpoints", "project", deleted_at=None, current_state="active"),
            # For the rounds of a host, and for the choice of a host for a new project.
            index(
                "active_endpoints_of_a_host",
                "host",
                include=["autoscaling_limit_max_cu"],
                deleted_at=None,
                current_state="active",
            ),
            index(
                "suspended_endpoints", "host", "suspended_at", deleted_at=None, current_state="idle"
            ),
            index("endpoints_to_check", "host", "check_due_at", deleted_at=None, disabled=False),
            index("deleted_endpoints", "host", "deleted_at", **DELETED),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def heartbeats_since(self) -> datetime | None:
        """Since when heartbeats are not activity; None if they are."""
        return (self.last_active or self.created_at) if self.ignore_heartbeats else None

    @property
    def configuration(self) -> Configuration:
        return {name: getattr(self, name) for name in APPLIED}

    def go_back_to(self, configuration: Configuration) -> None:
        """Restore an earlier configuration, and save it."""
        for name, value in configuration.items():
            setattr(self, name, value)
        self.save(update_fields=list(configuration))

    def enter(self, state: EndpointState, *, now: datetime) -> None:
        """Change `current_state` and the times that depend on it, and save them.

        Only this method changes `current_state` of an existing endpoint. It sets `started_at` and
        `suspended_at`, between which a trigger counts active time for the branch (`usage`). `now`
        is when the state changed, which may be earlier than the present time. The caller holds the
        project's lock.
        """
        if state == self.current_state:
            return
        if state == EndpointState.ACTIVE:
            self.started_at = self.last_active = now
            self.starts += 1
        elif self.current_state == EndpointState.ACTIVE and self.started_at:
            self.suspended_at = now
        self.current_state = state
        self.updated_at = max(now, self.updated_at)
        self.save(
            update_fields=[
                "current_state",
                "started_at",
                "suspended_at",
                "last_active",
                "starts",
                "updated_at",
            ]
        )
