"""The events that callers get: their filters, lists (newest first, with a cursor), and the order
in which streams read them without gaps.

The same filter restricts a query, for lists and for the events that a stream has missed, and
selects among new events as they arrive. The order of streams is (transaction, id): see
`models.event`. A position in it is that of an event that was read; all events before it were read
too.
"""

import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import connection, connections, transaction
from django.db.models import Q, QuerySet

from controlplane.actors import ActorType
from controlplane.database.base import DatabaseWrapper
from controlplane.events.types import EventType
from controlplane.models import Account, Event
from controlplane.services.errors import Invalid
from controlplane.services.projects import find_project

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
        is_group = prefix != name and prefix.endswith(".")
        named = [one for one in TYPES if one == name or (is_group and one.startswith(prefix))]
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


def _parts(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def events_of(account: Account, project_id: str | None) -> QuerySet[Event]:
    """The account's events, including those of its deleted projects, or the events of one project.

    Raises NotFound.
    """
    if project_id is None:
        return Event.objects.filter(account=account)
    return Event.objects.filter(project_id=find_project(account, project_id).id)


def list_events(
    account: Account,
    project_id: str | None,
    wanted: EventFilter,
    *,
    cursor: str | None,
    limit: int,
) -> list[Event]:
    """At most `limit` events, newest first, all older than `cursor`.

    Raises NotFound, and Invalid for a cursor that no page can have had.
    """
    events = wanted.narrow(events_of(account, project_id))
    if cursor is not None:
        at, number = _place_of(cursor)
        # Events before that time, or at that time with a smaller id. An index is used for the first
        # condition.
        events = events.filter(at__lte=at).filter(Q(at__lt=at) | Q(id__lt=number))
    return list(events.order_by("-at", "-id")[:limit])


def cursor_of(event: Event) -> str:
    """The position of an event in the list: its time in microseconds since 1970, and its id."""
    return f"{(event.at - EPOCH) // MICROSECOND}-{event.id}"


def _place_of(cursor: str) -> tuple[datetime, int]:
    try:
        microseconds, number = (int(part) for part in cursor.split("-"))
        return EPOCH + microseconds * MICROSECOND, number
    except (ValueError, OverflowError):
        raise Invalid("invalid cursor: not of an earlier page", fields=["cursor"]) from None


# By how much the next id is increased when a backup is restored. So new ids are greater than all
# that were assigned after the backup was taken, which readers may remember.
ID_LEAP = 1_000_000_000

TAIL = """
SELECT e.*, e.transaction < pg_snapshot_xmin(pg_current_snapshot()) AS is_settled
FROM controlplane_event e
WHERE (e.transaction, e.id) > (%s::text::xid8, %s)
ORDER BY e.transaction, e.id
LIMIT %s
"""
NEWEST = """
SELECT e.transaction::text, e.id FROM controlplane_event e
WHERE e.transaction < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.transaction DESC, e.id DESC LIMIT 1
"""
# Of an account, by the index `account_events_in_order` alone.
NEXT = """
SELECT e.transaction::text, e.id FROM controlplane_event e
WHERE e.account_id = %s AND (e.transaction, e.id) > (%s::text::xid8, %s)
AND (e.transaction, e.id) <= (%s::text::xid8, %s)
ORDER BY e.transaction, e.id LIMIT %s
"""
# Of an account's events, that are read at once for a stream, whether or not it wants them.
ROWS_READ = 1_000
LAST_EVENT_ID = re.compile(r"(?:([0-9]{1,18})-)?([0-9]{1,18})")
LEAP_AHEAD = """
SELECT setval(pg_get_serial_sequence('controlplane_event', 'id'),
    greatest((SELECT last_value FROM controlplane_event_id_seq), 1) + %s)
"""


class Position(NamedTuple):
    transaction: int
    id: int

    def __str__(self) -> str:
        return f"{self.transaction}-{self.id}"


# The position before all events.
NOTHING = Position(0, 0)


class Resumption(NamedTuple):
    """Where a reader continues: with the events after the position `after` whose id is greater than
    `above`."""

    after: Position
    above: int


def position_of(event: Event) -> Position:
    return Position(int(event.transaction), event.id)


def position_now() -> Position:
    """The position after all events that can be read now. All events that become readable later
    come after it."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST)
        newest = cursor.fetchone()
    return Position(int(newest[0]), newest[1]) if newest else NOTHING


def read_tail(after: Position, *, limit: int) -> tuple[list[Event], bool]:
    """Read the events of all accounts after the position, in order: at most `limit`. Returns them,
    and whether more events exist already.

    An event is not returned while a transaction that is older than its own is in progress, because
    the events of that transaction would come before it.
    """
    rows = list(Event.objects.raw(TAIL, [str(after.transaction), after.id, limit]))
    settled = [row for row in rows if row.is_settled]  # type: ignore[attr-defined]
    return settled, len(rows) == limit or len(settled) < len(rows)


def resumption(last_event_id: str) -> Resumption:
    """Where a reader continues that has read the event last. Raises Invalid.

    Transaction numbers are valid only in one database cluster. If the event does not exist any
    more, because it was older than the retention or a backup was restored, later events are found
    by their ids alone.
    """
    found = LAST_EVENT_ID.fullmatch(last_event_id.strip())
    if found is None:
        raise Invalid(
            f'last event id: no stream has sent "{last_event_id[:40]}"', fields=["last_event_id"]
        )
    number = int(found[2])
    row = Event.objects.filter(id=number).only("id", "transaction").first()
    return Resumption(position_of(row), 0) if row else Resumption(NOTHING, number)


def missed(
    account_id: int, events: QuerySet[Event], start: Resumption, *, until: Position, limit: int
) -> tuple[Sequence[Event], Position]:
    """Those of `events` that the reader has not read among the account's next ROWS_READ, at most
    `limit`, up to the position `until`, before which all events can be read; and the position that
    is read up to. However few events are wanted, one call therefore takes little time."""
    if until <= start.after:
        return [], start.after
    with connection.cursor() as cursor:
        (first, first_id), (last, last_id) = start.after, until
        cursor.execute(NEXT, [account_id, str(first), first_id, str(last), last_id, ROWS_READ])
        rows = [Position(int(number), id_) for number, id_ in cursor.fetchall()]
    ids = [row.id for row in rows if row.id > start.above]
    page = list(events.filter(id__in=ids).order_by("transaction", "id")[:limit])
    if len(page) == limit:
        return page, position_of(page[-1])
    return page, rows[-1] if len(rows) == ROWS_READ else until


def renumber_events() -> None:
    """After a restore into another database cluster, make all events older than new ones: set their
    transaction to 0, and increase the next id. This takes about a minute for a million events."""
    wrapper = connections["default"]
    assert isinstance(wrapper, DatabaseWrapper)
    with transaction.atomic(), wrapper.cursor() as cursor:
        wrapper.bound_statements(math.inf)
        cursor.execute("UPDATE controlplane_event SET transaction = '0' WHERE transaction <> '0'")
        cursor.execute(LEAP_AHEAD, [ID_LEAP])
        wrapper.bound_statements(wrapper.bound)
