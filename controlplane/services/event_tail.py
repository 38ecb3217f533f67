"""Events in the order in which they can be read without gaps, for the streams.

The order is (transaction, id): see `models.event`. A position in it is that of an event that was
read; all events before it were read too.
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
    events: QuerySet[Event], start: Resumption, *, until: Position, limit: int
) -> Sequence[Event]:
    """The first events, at most `limit`, that the reader has not read, up to the position `until`,
    before which all events can be read."""
    after, up_to = _condition(AFTER, start.after), _condition(UP_TO, until)
    rows = events.filter(after, up_to, id__gt=start.above).order_by("transaction", "id")
    return list(rows[:limit])


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


def _condition(sql: str, position: Position) -> RawSQL:
    parameters = [str(position.transaction), position.id]
    return RawSQL(sql, parameters, output_field=BooleanField())  # noqa: S611 # no caller's text
