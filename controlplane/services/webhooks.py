"""Webhooks as an account sees them: made, listed, changed, deleted, and their secret turned."""

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
from controlplane.models.webhook import ALL_EVENTS, TURNING
from controlplane.services import plan_limits
from controlplane.services.errors import (
    Invalid,
    NotFound,
    TooManyAtOnce,
    Unprocessable,
    locking_within_bound,
)
from controlplane.services.projects import find_project
from controlplane.webhooks import signing
from controlplane.webhooks.noting import begin_anew
from controlplane.webhooks.urls import NotAllowed, target_of

# What one may ask for: a test is sent to the webhook that is tested alone.
EVENT_TYPES = [str(kind) for kind in EventType if kind != EventType.WEBHOOK_TEST]


@dataclass(frozen=True)
class WebhookSpec:
    """What is asked of a new webhook. `secret` is None for one of ours."""

    url: str
    event_types: Sequence[str]
    project_id: str | None = None
    description: str = ""
    enabled: bool = True
    secret: str | None = None


@dataclass(frozen=True)
class WebhookChanges:
    """None for what stays as it is."""

    url: str | None = None
    event_types: Sequence[str] | None = None
    project_id: str | None = None
    description: str | None = None
    enabled: bool | None = None


def create_webhook(account: Account, spec: WebhookSpec) -> tuple[Webhook, str]:
    """The webhook, and its secret, which is shown this once.

    Raises Invalid, NotFound for a project that is not the account's, Unprocessable beyond the
    limit.
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
        # First, so that it is not told of itself: its receiver has yet to learn the secret.
        _record(EventType.WEBHOOK_CREATED, webhook, f"The webhook {webhook.id} was created")
        webhook.save(force_insert=True)
    return webhook, secret


def list_webhooks(account: Account, *, project_id: str | None = None) -> list[Webhook]:
    """The account's, the newest first; with `project_id`, those of that project alone."""
    webhooks = Webhook.objects.filter(account=account)
    if project_id is not None:
        webhooks = webhooks.filter(project_id=project_id)
    return list(webhooks.order_by("-created_at", "-id"))


def get_webhook(account: Account, webhook_id: str) -> Webhook:
    """Raises NotFound."""
    webhook = Webhook.objects.filter(account=account, id=webhook_id).first()
    if webhook is None:
        raise NotFound("webhook not found")
    return webhook


@contextmanager
def changing_webhook(account: Account, webhook_id: str) -> Iterator[Webhook]:
    """A transaction in which the webhook, held locked, may be changed. Raises NotFound."""
    with transaction.atomic():
        # No key update: events, with deliveries that refer to it, may be written meanwhile.
        locked = Webhook.objects.select_for_update(no_key=True)
        with locking_within_bound(TooManyAtOnce("the webhook is being changed; try again")):
            webhook = locked.filter(account=account, id=webhook_id).first()
        if webhook is None:
            raise NotFound("webhook not found")
        yield webhook


def update_webhook(account: Account, webhook_id: str, wanted: WebhookChanges) -> Webhook:
    """Raises NotFound, Invalid, Unprocessable for another project than it has."""
    with changing_webhook(account, webhook_id) as webhook:
        if wanted.project_id not in (None, webhook.project_id):
            raise Unprocessable("project_id: a webhook stays with its project; create another one")
        before = _shown(webhook)
        if wanted.url is not None:
            webhook.url = _checked_url(wanted.url)
        if wanted.event_types is not None:
            webhook.event_types = _checked_types(wanted.event_types)
        if wanted.description is not None:
            webhook.description = wanted.description
        if wanted.enabled is not None:
            webhook.enabled = wanted.enabled
        changes = _differences(before, _shown(webhook))
        if not changes:
            return webhook
        if webhook.enabled and changes.keys() & {"enabled", "url"}:
            # Another receiver, or one that was mended: what failed before says nothing of it.
            webhook.disabled_reason = ""
            begin_anew(webhook)
            outbox.enqueue_sending(webhook)
        webhook.updated_at = clock.now()
        webhook.save()
        _record(
            EventType.WEBHOOK_UPDATED, webhook, f"The webhook {webhook.id} was changed", changes
        )
    return webhook


def delete_webhook(account: Account, webhook_id: str) -> Webhook:
    """Raises NotFound. What it was still to be told of is forgotten, and so is what it was told."""
    with changing_webhook(account, webhook_id) as webhook:
        kept_id = webhook.id
        webhook.delete()
        webhook.id = kept_id
        _record(EventType.WEBHOOK_DELETED, webhook, f"The webhook {webhook.id} was deleted")
    return webhook


def rotate_secret(
    account: Account, webhook_id: str, wanted: str | None = None
) -> tuple[Webhook, str]:
    """The webhook and its new secret, which is shown this once: `wanted`, or one of ours. For a
    day what is sent is signed with the one before too.

    Raises NotFound, Invalid.
    """
    secret = _checked_secret(wanted)
    with changing_webhook(account, webhook_id) as webhook:
        now = clock.now()
        webhook.previous_secret, webhook.previous_secret_until = webhook.secret, now + TURNING
        webhook.secret = signing.encrypt(secret)
        webhook.updated_at = now
        webhook.save()
        # That it changed, and nothing of what it was or is.
        changes = {"secret": {"from": None, "to": None}}
        words = f"The secret of the webhook {webhook.id} was turned"
        _record(EventType.WEBHOOK_UPDATED, webhook, words, changes)
    return webhook, secret


def _checked_url(url: str) -> str:
    try:
        target_of(url)
    except NotAllowed as error:
        raise Invalid(f"invalid url: {error}") from None
    return url


def _checked_types(types: Sequence[str]) -> list[str]:
    """The types in the order in which they were named, each once."""
    wanted = list(dict.fromkeys(types))
    if not wanted:
        raise Invalid(f'event_types must name at least one; "{ALL_EVENTS}" stands for all')
    unknown = [kind for kind in wanted if kind not in EVENT_TYPES and kind != ALL_EVENTS]
    if unknown:
        raise Invalid(
            f'unknown event type "{unknown[0][:64]}"; there are: {", ".join(EVENT_TYPES)}, '
            f'and "{ALL_EVENTS}" for all'
        )
    return [ALL_EVENTS] if ALL_EVENTS in wanted else wanted


def _checked_secret(secret: str | None) -> str:
    if secret is None:
        return signing.new_secret()
    try:
        signing.key_of(secret)
    except ValueError as error:
        raise Invalid(f"invalid secret: {error}") from None
    return secret


def _shown(webhook: Webhook) -> Mapping[str, Any]:
    """What events tell of it: of its URL, which may hold a receiver's own secret, the host."""
    parts = urlsplit(webhook.url)
    return {
        "url": (f"{parts.scheme}://{parts.netloc}/…", webhook.url),
        "event_types": (webhook.event_types, webhook.event_types),
        "description": (webhook.description, webhook.description),
        "enabled": (webhook.enabled, webhook.enabled),
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By field, what is told of it before and after; of those whose values differ."""
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
