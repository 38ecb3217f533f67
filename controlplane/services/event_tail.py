"""Events in the order in which they can be read without a gap, for the streams.

That is (transaction, id): see `models.event`. A position in it is behind an event that was read,
and all that is before it was, too.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from django.db import connection, connections, transaction
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from controlplane.database.base import DatabaseWrapper
from controlplane.models import Event
from controlplane.services.errors import Invalid

# How far ids leap when a backup is restored: beyond those that were given out after it was taken,
# and that readers may remember.
LEAP = 1_000_000_000

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
AFTER = '("transaction", id) > (%s::text::xid8, %s)'
UP_TO = '("transaction", id) <= (%s::text::xid8, %s)'
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


# Before every event.
NOTHING = Position(0, 0)


class Resumption(NamedTuple):
    """Where a reader goes on: behind the position, with events of a greater id than this."""

    after: Position
    above: int


def position_of(event: Event) -> Position:
    return Position(int(event.transaction), event.id)


def position_now() -> Position:
    """Behind all that can be read; whatever is committed from now on comes after it."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST)
        newest = cursor.fetchone()
    return Position(int(newest[0]), newest[1]) if newest else NOTHING


def read_tail(after: Position, *, limit: int) -> tuple[list[Event], bool]:
    """The events of all accounts that follow, in order; and whether more are there already.

    An event that is committed while an older transaction is still under way is not yet one of
    them: that one's would come before it.
    """
    rows = list(Event.objects.raw(TAIL, [str(after.transaction), after.id, limit]))
    settled = [row for row in rows if row.is_settled]  # type: ignore[attr-defined]
    return settled, len(rows) == limit or len(settled) < len(rows)


def resumption(last_event_id: str) -> Resumption:
    """Where the reader of that event goes on. Raises Invalid.

    Transactions are numbered by the database cluster. After a restore, as where the event is gone
    with the retention, the id alone says what came later.
    """
    found = LAST_EVENT_ID.fullmatch(last_event_id.strip())
    if found is None:
        raise Invalid(f'last event id: no stream has said "{last_event_id[:40]}"')
    number = int(found[2])
    row = Event.objects.filter(id=number).only("id", "transaction").first()
    return Resumption(position_of(row), 0) if row else Resumption(NOTHING, number)


def missed(
    events: QuerySet[Event], start: Resumption, *, until: Position, limit: int
) -> Sequence[Event]:
    """The first of the events that the reader has not had, up to the position, which is behind
    what can be read."""
    after, up_to = _condition(AFTER, start.after), _condition(UP_TO, until)
    rows = events.filter(after, up_to, id__gt=start.above).order_by("transaction", "id")
    return list(rows[:limit])


def renumber_events() -> None:
    """Have all events be older than what is to come, in a cluster of other transactions. Takes
    about a minute for a million of them."""
    wrapper = connections["default"]
    assert isinstance(wrapper, DatabaseWrapper)
    with transaction.atomic(), wrapper.cursor() as cursor:
        wrapper.bound_statements(math.inf)
        cursor.execute("UPDATE controlplane_event SET transaction = '0' WHERE transaction <> '0'")
        cursor.execute(LEAP_AHEAD, [LEAP])
        wrapper.bound_statements(wrapper.bound)


def _condition(sql: str, position: Position) -> RawSQL:
    parameters = [str(position.transaction), position.id]
    return RawSQL(sql, parameters, output_field=BooleanField())  # noqa: S611 # no caller's text
