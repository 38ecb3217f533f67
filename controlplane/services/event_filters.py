"""Filters of events: by type, actor, object and time.

The same filter restricts a query, for lists and for the events that a stream has missed, and
selects among new events as they arrive.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from controlplane.actors import ActorType
from controlplane.events.types import EventType
from controlplane.models import Event
from controlplane.services.errors import Invalid

# The event of a webhook's test is not among these, because it is sent only to that webhook.
TYPES = tuple(str(one) for one in EventType if one != EventType.WEBHOOK_TEST)
ACTORS = tuple(str(one) for one in ActorType)


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Selects events; fields that are empty or None do not restrict them."""

    types: frozenset[str] = frozenset()
    actors: frozenset[str] = frozenset()
    # The name of the actor; `actors` then has exactly one type.
    actor_name: str | None = None
    branch_ids: frozenset[str] = frozenset()
    endpoint_ids: frozenset[str] = frozenset()
    operation_id: uuid.UUID | None = None
    # `since` is inclusive, `until` exclusive.
    since: datetime | None = None
    until: datetime | None = None

    def narrow(self, events: QuerySet[Event]) -> QuerySet[Event]:
        for field, values in (
            ("type", self.types),
            ("actor_type", self.actors),
            ("branch_id", self.branch_ids),
            ("endpoint_id", self.endpoint_ids),
        ):
            if values:
                events = events.filter(**{f"{field}__in": sorted(values)})
        if self.actor_name is not None:
            events = events.filter(actor_name=self.actor_name)
        if self.operation_id is not None:
            events = events.filter(operation_ids__contains=[self.operation_id])
        if self.since is not None:
            events = events.filter(at__gte=self.since)
        if self.until is not None:
            events = events.filter(at__lt=self.until)
        return events

    def admits(self, event: Event) -> bool:
        return (
            (not self.types or event.type in self.types)
            and (not self.actors or event.actor_type in self.actors)
            and self.actor_name in (None, event.actor_name)
            and (not self.branch_ids or event.branch_id in self.branch_ids)
            and (not self.endpoint_ids or event.endpoint_id in self.endpoint_ids)
            and (self.operation_id is None or self.operation_id in event.operation_ids)
            and (self.since is None or event.at >= self.since)
            and (self.until is None or event.at < self.until)
        )


def types_named(text: str) -> frozenset[str]:
    """Parse types of events, separated by commas: names, or prefixes as in `endpoint.*`. Raises
    Invalid."""
    found: set[str] = set()
    for name in _parts(text):
        prefix = name.removesuffix("*")
        named = [one for one in TYPES if one == name or (prefix != name and _is_of(one, prefix))]
        if not named:
            raise Invalid(
                f'type: unknown type "{name}"; use one of: {", ".join(TYPES)}', fields=["type"]
            )
        found.update(named)
    return frozenset(found)


def actors_named(text: str) -> tuple[frozenset[str], str | None]:
    """Parse types of actors, separated by commas; or one type and an actor's name, separated by a
    colon. Raises Invalid."""
    kind, colon, name = text.partition(":")
    kinds = _parts(kind)
    if colon and len(kinds) != 1:
        raise Invalid("actor: a name needs exactly one type, as in user:deploy", fields=["actor"])
    for one in kinds:
        if one not in ACTORS:
            raise Invalid(
                f'actor: unknown type "{one}"; use one of: {", ".join(ACTORS)}', fields=["actor"]
            )
    return frozenset(kinds), name if colon else None


def ids_named(text: str) -> frozenset[str]:
    return frozenset(_parts(text))


def operation_named(text: str) -> uuid.UUID | None:
    """Parse the id of an operation; None for "". Raises Invalid."""
    try:
        return uuid.UUID(text) if text else None
    except ValueError:
        raise Invalid(
            f'operation_id: "{text}" is not the id of an operation', fields=["operation_id"]
        ) from None


def time_named(field: str, time: datetime | None) -> datetime | None:
    """Return the time. Raises Invalid if it has no time zone."""
    if time is not None and time.tzinfo is None:
        raise Invalid(
            f"{field}: the time zone is missing; send a time such as 2026-01-31T12:00:00Z",
            fields=[field],
        )
    return time


def _is_of(kind: str, prefix: str) -> bool:
    return prefix.endswith(".") and kind.startswith(prefix)


def _parts(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
