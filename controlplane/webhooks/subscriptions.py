"""Webhooks: create, list, change, delete them, and rotate their secrets."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from controlplane import clock
from controlplane.events import outbox
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account, Webhook
from controlplane.models.webhook import ALL_EVENTS, OVERLAP_TTL
from controlplane.services.errors import (
    Invalid,
    NotFound,
    TooManyAtOnce,
    locking_within_bound,
    refused_field,
)
from controlplane.services.projects import find_project
from controlplane.services.rules import plan_limits
from controlplane.webhooks import signing
from controlplane.webhooks.sending import reset_failures
from controlplane.webhooks.urls import NotAllowed, target_of

# The types that a webhook may select. Test events are not among these, because they are sent only
# to the tested webhook.
EVENT_TYPES = [str(kind) for kind in EventType if kind != EventType.WEBHOOK_TEST]


@dataclass(frozen=True)
class WebhookSpec:
    """What a request asks of a new webhook. If `secret` is None, Perch generates one."""

    url: str
    event_types: Sequence[str]
    project_id: str | None = None
    description: str = ""
    enabled: bool = True
    secret: str | None = None


@dataclass(frozen=True)
class WebhookChanges:
    """What a request changes of a webhook; None for what was not sent."""

    url: str | None = None
    event_types: Sequence[str] | None = None
    project_id: str | None = None
    description: str | None = None
    enabled: bool | None = None


def create_webhook(account: Account, spec: WebhookSpec) -> tuple[Webhook, str]:
    """Create a webhook. Returns it and its secret, which is shown only this once.

    Raises Invalid, NotFound for a project that is not the account's, Unprocessable if the account's
    plan allows no more, TooManyAtOnce.
    """
    webhook = Webhook(
        account=account,
        project=find_project(account, spec.project_id) if spec.project_id else None,
        url=_checked_url(spec.url),
        event_types=_checked_types(spec.event_types),
        description=spec.description,
        enabled=spec.enabled,
    )
    secret = _checked_secret(spec.secret)
    webhook.secret = signing.encrypt(secret)
    with transaction.atomic():
        plan_limits.check_webhooks(account)
        # The event is written before the webhook, so that it is not sent to the webhook itself,
        # whose receiver does not have the secret yet.
        _record(EventType.WEBHOOK_CREATED, webhook, f"The webhook {webhook.id} was created")
        webhook.save(force_insert=True)
    return webhook, secret


def list_webhooks(account: Account, *, project_id: str | None = None) -> list[Webhook]:
    """The account's webhooks, newest first; if `project_id` is given, only those of that
    project."""
    webhooks = Webhook.objects.filter(account=account)
    if project_id is not None:
        webhooks = webhooks.filter(project_id=project_id)
    return list(webhooks.order_by("-created_at", "-id"))


def get_webhook(account: Account, webhook_id: str) -> Webhook:
    """The account's webhook with this id. Raises NotFound."""
    webhook = Webhook.objects.filter(account=account, id=webhook_id).first()
    if webhook is None:
        raise NotFound("webhook not found", fields=["webhook_id"])
    return webhook


@contextmanager
def changing_webhook(account: Account, webhook_id: str) -> Iterator[Webhook]:
    """A transaction that holds the webhook's lock, in which the webhook may be changed. Raises
    NotFound, TooManyAtOnce."""
    with transaction.atomic():
        # FOR NO KEY UPDATE, so that events can be written meanwhile, whose deliveries refer to the
        # webhook.
        locked = Webhook.objects.select_for_update(no_key=True)
        with locking_within_bound(TooManyAtOnce("the webhook is being changed; try again")):
            webhook = locked.filter(account=account, id=webhook_id).first()
        if webhook is None:
            raise NotFound("webhook not found", fields=["webhook_id"])
        yield webhook


def update_webhook(account: Account, webhook_id: str, wanted: WebhookChanges) -> Webhook:
    """Change the attributes that were sent. Raises NotFound, TooManyAtOnce, Invalid, Unprocessable
    for another project than the webhook's."""
    with changing_webhook(account, webhook_id) as webhook:
        if wanted.project_id not in (None, webhook.project_id):
            raise refused_field(
                "project_id", "a webhook stays with its project; create another one"
            )
        before = _event_fields(webhook)
        if wanted.url is not None:
            webhook.url = _checked_url(wanted.url)
        if wanted.event_types is not None:
            webhook.event_types = _checked_types(wanted.event_types)
        if wanted.description is not None:
            webhook.description = wanted.description
        if wanted.enabled is not None:
            webhook.enabled = wanted.enabled
        changes = _differences(before, _event_fields(webhook))
        if not changes:
            return webhook
        if webhook.enabled and changes.keys() & {"enabled", "url"}:
            # The receiver is another one or was probably repaired, so earlier failures do not count
            # any more.
            webhook.disabled_reason = ""
            reset_failures(webhook)
            outbox.enqueue_sending(webhook)
        webhook.updated_at = clock.now()
        webhook.save()
        _record(
            EventType.WEBHOOK_UPDATED, webhook, f"The webhook {webhook.id} was changed", changes
        )
    return webhook


def delete_webhook(account: Account, webhook_id: str) -> Webhook:
    """Delete the webhook. A round deletes its deliveries, also pending ones. Raises NotFound,
    TooManyAtOnce."""
    with changing_webhook(account, webhook_id) as webhook:
        kept_id = webhook.id
        webhook.delete()
        webhook.id = kept_id
        _record(EventType.WEBHOOK_DELETED, webhook, f"The webhook {webhook.id} was deleted")
    return webhook


def rotate_secret(
    account: Account, webhook_id: str, wanted: str | None = None
) -> tuple[Webhook, str]:
    """Set a new secret: `wanted`, or one that Perch generates. Returns the webhook and the secret,
    which is shown only this once. For a day deliveries are signed with the previous secret too.

    Raises NotFound, TooManyAtOnce, Invalid.
    """
    secret = _checked_secret(wanted)
    with changing_webhook(account, webhook_id) as webhook:
        now = clock.now()
        webhook.previous_secret, webhook.previous_secret_until = webhook.secret, now + OVERLAP_TTL
        webhook.secret = signing.encrypt(secret)
        webhook.updated_at = now
        webhook.save()
        # The event shows that the secret changed, but neither the old nor the new one.
        changes = {"secret": {"from": None, "to": None}}
        words = f"The secret of the webhook {webhook.id} was rotated"
        _record(EventType.WEBHOOK_UPDATED, webhook, words, changes)
    return webhook, secret


def _checked_url(url: str) -> str:
    try:
        target_of(url)
    except NotAllowed as error:
        raise Invalid(f"invalid url: {error}", fields=["url"]) from None
    return url


def _checked_types(types: Sequence[str]) -> list[str]:
    """The distinct types, in the order in which they were named; only ALL_EVENTS if that is among
    them. Raises Invalid."""
    wanted = list(dict.fromkeys(types))
    if not wanted:
        raise Invalid(
            f'event_types must name at least one type; "{ALL_EVENTS}" stands for all',
            fields=["event_types"],
        )
    unknown = [kind for kind in wanted if kind not in EVENT_TYPES and kind != ALL_EVENTS]
    if unknown:
        raise Invalid(
            f'unknown event type "{unknown[0][:64]}"; use {", ".join(EVENT_TYPES)}, '
            f'or "{ALL_EVENTS}" for all',
            fields=["event_types"],
        )
    return [ALL_EVENTS] if ALL_EVENTS in wanted else wanted


def _checked_secret(secret: str | None) -> str:
    if secret is None:
        return signing.new_secret()
    try:
        signing.key_of(secret)
    except ValueError as error:
        raise Invalid(f"invalid secret: {error}", fields=["secret"]) from None
    return secret


def _event_fields(webhook: Webhook) -> Mapping[str, Any]:
    """For each attribute that may be changed: what events show of it, and its value. Of the URL,
    which may contain a secret of the receiver, events show only the scheme and host."""
    parts = urlsplit(webhook.url)
    return {
        "url": (f"{parts.scheme}://{parts.netloc}/…", webhook.url),
        "event_types": (webhook.event_types, webhook.event_types),
        "description": (webhook.description, webhook.description),
        "enabled": (webhook.enabled, webhook.enabled),
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each attribute whose value differs, what events show of it before and after."""
    return {
        name: {"from": told, "to": after[name][0]}
        for name, (told, value) in before.items()
        if value != after[name][1]
    }


def _record(
    kind: EventType,
    webhook: Webhook,
    summary: str,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    record(
        happened(
            kind,
            summary=summary,
            account_id=webhook.account_id,
            project=webhook.project_id,
            changes=changes,
        )
    )
