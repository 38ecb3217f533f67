"""Webhooks: where an account wants to be told of its events, and what is to be told there."""

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from controlplane import clock
from controlplane.models.account import Account
from controlplane.models.event import Event
from controlplane.models.names import new_webhook_id
from controlplane.models.project import Project

# Stands for every type of events.
ALL_EVENTS = "*"
# What was not delivered by then is given up.
TRIED_FOR = timedelta(days=1)
# How long the secret before is valid beside its successor.
TURNING = timedelta(days=1)


class Webhook(models.Model):
    """A receiver, and how it fares.

    Events become its deliveries where they are written (`events.recording`); a job of the queue
    sends them (`webhooks.sending`).
    """

    id = models.CharField(primary_key=True, max_length=60, default=new_webhook_id)
    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="webhooks")
    # None for all of the account.
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=2048)
    # Of `events.types`, or ALL_EVENTS alone.
    event_types = ArrayField(models.CharField(max_length=48))
    description = models.CharField(max_length=256, default="")
    enabled = models.BooleanField(default=True)
    # Why Perch has switched it off, in words; "" where it has not.
    disabled_reason = models.CharField(max_length=256, default="")
    # Encrypted, both.
    secret = models.TextField()
    previous_secret = models.TextField(default="")
    # Until when the previous one is valid too.
    previous_secret_until = models.DateTimeField(null=True)
    # Attempts that have failed since the last one that did not, and when the first of them was.
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    # Why the last of them did, in words; "" where it fares well.
    last_error = models.TextField(default="", db_default="")
    # Not before then is anything sent, as the last attempt has failed.
    held_until = models.DateTimeField(null=True)
    # Whose attempts count: a job writes its own name here, and nothing once another's is there.
    sender = models.UUIDField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.id

    @property
    def lock(self) -> str:
        """Of its jobs in the queue: one at a time is done."""
        return self.id

    def previous_secret_at(self, now: datetime) -> str:
        """The encrypted previous secret, "" where none is valid any more."""
        until = self.previous_secret_until
        return self.previous_secret if until is not None and now < until else ""


class DeliveryStatus(models.TextChoices):
    PENDING = "pending", "To be sent, perhaps again"
    DELIVERED = "delivered", "The receiver has taken it"
    FAILED = "failed", "Given up"


class WebhookDelivery(models.Model):
    """An event that a webhook is to be told of, and what became of that.

    Sent in the order of ids, which is the order in which the changes of a project happened:
    each is written under the project's lock.
    """

    webhook = models.ForeignKey(
        Webhook, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    # The database itself deletes a delivery with its event (migration 0016): whoever deletes old
    # events need not know of deliveries.
    event = models.ForeignKey(
        Event, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
    )
    status = models.CharField(
        max_length=16, choices=DeliveryStatus.choices, db_default=DeliveryStatus.PENDING
    )
    # Somebody has asked for it by a request, so it goes before what waits.
    asked_for = models.BooleanField(db_default=False)
    attempts = models.PositiveIntegerField(db_default=0)
    # Of a pending one: when it is due, and when it is given up.
    next_attempt_at = models.DateTimeField(null=True)
    gives_up_at = models.DateTimeField()
    # Of the last attempt.
    attempted_at = models.DateTimeField(null=True)
    duration_ms = models.PositiveIntegerField(null=True)
    # What the receiver has answered: None where it has not.
    response_status = models.PositiveSmallIntegerField(null=True)
    response_body = models.TextField(db_default="")
    # Why it failed, in words; "" where it did not.
    error = models.TextField(db_default="")
    created_at = models.DateTimeField(db_default=Now())
    # When it was delivered or given up.
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="delivery_status_is_known",
                condition=models.Q(status__in=DeliveryStatus.values),
            ),
        )
        indexes = (
            models.Index(name="deliveries_of_a_webhook", fields=["webhook", "-id"]),
            models.Index(
                name="pending_deliveries",
                fields=["webhook", "-asked_for", "id"],
                condition=models.Q(status=DeliveryStatus.PENDING),
            ),
            models.Index(name="ended_deliveries", fields=["ended_at"]),
        )

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"{DELIVERY_PREFIX}{self.id}"


DELIVERY_PREFIX = "dlv-"
