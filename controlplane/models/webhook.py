"""Webhooks: the URLs to which an account's events are sent, and the deliveries to them."""

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from controlplane import clock
from controlplane.models.account import Account
from controlplane.models.event import Event
from controlplane.models.names import new_webhook_id
from controlplane.models.project import Project
from controlplane.models.rules import index, one_of

# Stands for all types of events.
ALL_EVENTS = "*"
# A delivery that has not succeeded after this time is given up.
DELIVERY_TIMEOUT = timedelta(days=1)
# How long the previous secret stays valid after a new one is set.
OVERLAP_TTL = timedelta(days=1)


class Webhook(models.Model):
    """A receiver of events, and whether deliveries to it succeed.

    When an event is written (`events.recording`), a trigger writes its deliveries
    (`events.outbox`). A job of the queue sends them (`webhooks.sending`).
    """

    id = models.CharField(primary_key=True, max_length=60, default=new_webhook_id)
    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="webhooks")
    # None for the events of the whole account.
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=2048)
    # Values of `events.types`, or only ALL_EVENTS.
    event_types = ArrayField(models.CharField(max_length=48))
    description = models.CharField(max_length=256, default="")
    enabled = models.BooleanField(default=True)
    # Why Perch has switched the webhook off, as a message; "" if it has not.
    disabled_reason = models.CharField(max_length=256, default="")
    # Both secrets are encrypted.
    secret = models.TextField()
    previous_secret = models.TextField(default="")
    # Until when the previous secret is valid too.
    previous_secret_until = models.DateTimeField(null=True)
    # The number of consecutive attempts that have failed, and when the first of them did.
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    # Why the last of them failed, as a message; "" if the last attempt succeeded.
    last_error = models.TextField(default="", db_default="")
    # Nothing is sent before then, because the last attempt has failed.
    held_until = models.DateTimeField(null=True)
    # The id of the job whose attempts count. A job writes its own id here before it sends, and
    # writes no results once another job's id is here.
    sender = models.UUIDField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.id

    def previous_secret_at(self, now: datetime) -> str:
        """The encrypted previous secret; "" if none is valid any more."""
        until = self.previous_secret_until
        return self.previous_secret if until is not None and now < until else ""


class DeliveryStatus(models.TextChoices):
    PENDING = "pending", "To be sent, perhaps again"
    DELIVERED = "delivered", "The receiver has taken it"
    FAILED = "failed", "Given up"


class WebhookDelivery(models.Model):
    """An event that is to be sent to a webhook, and the result of that.

    Deliveries are sent in the order of ids. This is the order in which the changes of a project
    happened, because each is written under the project's lock.
    """

    # Without a constraint: with one, a transaction that records an event would fail if the webhook
    # is deleted meanwhile, or the deletion would. The deletion leaves them to `webhooks.upkeep`,
    # because there may be more of them than one statement can delete in time.
    webhook = models.ForeignKey(
        Webhook,
        on_delete=models.DO_NOTHING,
        related_name="deliveries",
        db_index=False,
        db_constraint=False,
    )
    # The database deletes a delivery with its event (migration 0001_squashed_0029), so that code
    # which deletes old events need not know of deliveries.
    event = models.ForeignKey(
        Event, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
    )
    status = models.CharField(
        max_length=16, choices=DeliveryStatus.choices, db_default=DeliveryStatus.PENDING
    )
    # Whether a request asked for it. It is then sent before other pending deliveries.
    asked_for = models.BooleanField(db_default=False)
    attempts = models.PositiveIntegerField(db_default=0)
    # Of a pending delivery: when it is due, and when it is given up.
    next_attempt_at = models.DateTimeField(null=True)
    gives_up_at = models.DateTimeField()
    # Of the last attempt: when it was, and its duration.
    attempted_at = models.DateTimeField(null=True)
    duration_ms = models.PositiveIntegerField(null=True)
    # The receiver's answer to it; None and "" if it did not answer.
    response_status = models.PositiveSmallIntegerField(null=True)
    response_body = models.TextField(db_default="")
    # Why it failed, as a message; "" if it succeeded.
    error = models.TextField(db_default="")
    created_at = models.DateTimeField(db_default=Now())
    # When it was delivered or given up.
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (one_of("delivery_status_is_known", "status", *DeliveryStatus.values),)
        indexes = (
            index("deliveries_of_a_webhook", "webhook", "-id"),
            index(
                "pending_deliveries", "webhook", "-asked_for", "id", status=DeliveryStatus.PENDING
            ),
            index("ended_deliveries", "ended_at"),
        )

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"{DELIVERY_PREFIX}{self.id}"


DELIVERY_PREFIX = "dlv-"
