"""What happened, one line each: the events of one request, from the request to its end, are one
thing. A suspend has three events, for example: it was requested, the endpoint became idle, and the
operation has finished. So are events that repeat each other without another in between."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from itertools import groupby

from django.utils.timezone import localtime

from console.api.resources.operations import Actor
from console.events.rows import EventRow, Link
from console.events.types import BAD
from console.pages.statuses import whole_duration_ms
from console.templatetags.reasons import plainly

# What the requests of endpoints are called once they are done, and before or without that, by the
# type of their first event. A start for a client and a suspend for idleness begin with the
# endpoint's new state.
NAMES = {
    "endpoint.start_requested": ("Endpoint started", "Start"),
    "endpoint.suspend_requested": ("Endpoint suspended", "Suspend"),
    "endpoint.restart_requested": ("Endpoint restarted", "Restart"),
    "endpoint.active": ("Endpoint started", "Start"),
    "endpoint.idle": ("Endpoint suspended", "Suspend"),
}
# The same for the end of an operation alone.
OF_ACTIONS = {"start_compute": "Start", "suspend_compute": "Suspend", "check_availability": "Check"}
# The state of an endpoint, by the type of event that reports it.
STATES = ("endpoint.active", "endpoint.idle")
# A password is shown whenever somebody copies it or runs a query, which says little each time. So
# this is one line for each day, whatever happened in between.
SEEN = "role.password_revealed"
# How the operations of a thing ended, by the type of event; the first that applies counts.
FAILED, CANCELLED, FINISHED = "operation.failed", "operation.cancelled", "operation.finished"
ENDINGS = {FAILED: BAD, CANCELLED: ("cancelled", "quiet"), FINISHED: ("check", "good")}


@dataclass(frozen=True)
class Thing:
    # The newest first; at least one.
    rows: Sequence[EventRow]

    @cached_property
    def id(self) -> str:
        """The id of the first event, which stays the same when others follow."""
        return self.rows[-1].event.id

    @cached_property
    def lead(self) -> EventRow:
        """The first event that is not only about an operation."""
        own = [row for row in self.rows if not row.event.type.startswith("operation.")]
        return own[-1] if own else self.rows[-1]

    @cached_property
    def _last(self) -> EventRow | None:
        """The newest event that tells a result, other than that of an operation. A restore, for
        example, also suspends and starts an endpoint: its result is what became of the branch."""
        lead = self.lead
        about, _, _ = lead.event.type.partition(".")
        told = [row for row in self.rows if not row.event.type.startswith("operation.")]
        own = [
            row
            for row in told
            if row.event.type.startswith(f"{about}.")
            and row.event.branch_id == lead.event.branch_id
        ]
        found = own if len(own) > 1 else told
        return found[0] if found and found[0] is not lead else None

    @cached_property
    def ending(self) -> str:
        """The type of event that decides how it ended; "" if it has not, or has no operations."""
        types = {row.event.type for row in self.rows}
        return next((ending for ending in ENDINGS if ending in types), "")

    @cached_property
    def title(self) -> str:
        lead = self.lead
        kind = lead.event.type
        failed = next((row.event.operation for row in self.rows if row.event.type == FAILED), None)
        if failed and kind in (FAILED, *STATES) and failed.action in OF_ACTIONS:
            return f"{OF_ACTIONS[failed.action]} failed"
        named = NAMES.get(kind)
        if named and (kind in STATES or self.ending):
            done, requested = named
            outcome = {FAILED: f"{requested} failed", CANCELLED: f"{requested} cancelled"}
            return outcome.get(self.ending, done)
        if kind.endswith("_requested") and self._last and not named:
            lead = self._last
        # The line links to the endpoint, so that its id need not be in the sentence too.
        endpoint_id = lead.event.endpoint_id
        return lead.sentence.replace(f" {endpoint_id} ", " ") if endpoint_id else lead.sentence

    @cached_property
    def reason(self) -> str:
        """Why it failed, in a plain sentence; "" if it did not."""
        for row in self.rows:
            if row.reason and row.event.operation:
                return plainly(row.reason, row.event.operation.action)
        return ""

    @cached_property
    def tone(self) -> str:
        return self._look[1]

    @cached_property
    def shape(self) -> str:
        return self._look[0]

    @cached_property
    def _look(self) -> tuple[str, str]:
        if self.ending in (FAILED, CANCELLED):
            return ENDINGS[self.ending]
        if self.lead.event.type in NAMES and (
            states := [row.type for row in self.rows if row.event.type in STATES]
        ):
            return states[0].shape, states[0].tone
        if self.ending and self.lead.event.type.endswith("_requested"):
            return ENDINGS[self.ending]
        return self.lead.type.shape, self.lead.type.tone

    @cached_property
    def actor(self) -> Actor | None:
        return next((row.event.actor for row in self.rows[::-1] if row.event.actor), None)

    @cached_property
    def at(self) -> datetime | None:
        return self.rows[0].event.at

    @cached_property
    def times(self) -> int:
        """How often the same happened."""
        return 1 if self.lead.event.operation_ids else len(self.rows)

    @cached_property
    def took_ms(self) -> int | None:
        """Milliseconds from the first event to the last, or as the page of the operations has it;
        None if it was only one event, or repeated."""
        began = self.rows[-1].event.at
        if len(self.rows) == 1 or self.times > 1 or self.at is None or began is None:
            return None
        ends = [row.event.operation for row in self.rows if row.event.type in ENDINGS]
        durations = [one.duration_ms for one in ends if one and one.duration_ms is not None]
        if durations and len(durations) == len(ends):
            # To the second, as the times of operations.
            lasted = self.at.replace(microsecond=0) - began.replace(microsecond=0)
            return whole_duration_ms(round(lasted.total_seconds() * 1000), durations)
        return max(0, round((self.at - began).total_seconds() * 1000))

    @cached_property
    def links(self) -> Sequence[Link]:
        return [link for link in self.lead.links if link.kind != "run"]

    @cached_property
    def run(self) -> Link | None:
        return next((link for link in self.lead.links if link.kind == "run"), None)


def things(newest_first: Iterable[EventRow]) -> list[Thing]:
    """Fold events into things, each at the place of its newest event. Events are of one thing if
    they have an operation in common, or if they say the same and are neighbours or `SEEN`."""
    groups: dict[int, list[EventRow]] = {}
    # The number of the group that each operation belongs to, by project and operation.
    group_of: dict[tuple[str, str], int] = {}
    for number, row in enumerate(newest_first):
        operations = [(row.event.project_id, one) for one in row.event.operation_ids]
        known = sorted({group_of[one] for one in operations if one in group_of})
        own, *others = known or [number]
        members = groups.setdefault(own, [])
        # A request comes after the ends of its operations, which were not known to belong together.
        for other in others:
            members.extend(groups.pop(other))
            group_of.update({one: own for one, group in group_of.items() if group == other})
        members.append(row)
        group_of.update(dict.fromkeys(operations, own))
    folded = [
        sorted(members, key=lambda row: -row.event.at.timestamp() if row.event.at else 0.0)
        for members in groups.values()
    ]
    found: list[list[EventRow]] = []
    seen: dict[object, list[EventRow]] = {}
    for said, same in groupby(folded, key=_grouping_key):
        rows = [row for rows in same for row in rows]
        if rows[0].event.type == SEEN and said in seen:
            seen[said] += rows
            continue
        found.append(rows)
        if rows[0].event.type == SEEN:
            seen[said] = rows
    return [Thing(rows) for rows in found]


def _grouping_key(rows: Sequence[EventRow]) -> object:
    """What must be equal for things to be shown as one. Only events without an operation, which
    change nothing, are alike."""
    row, *others = rows
    event = row.event
    # The event of a password has the role's name among its changes, with the same value twice.
    if others or event.operation_ids or row.changes:
        return row.event.id
    about = event.project_id, event.endpoint_id, event.branch_id
    return event.type, row.sentence, about, event.actor, event.at and localtime(event.at).date()


@dataclass(frozen=True)
class Day:
    name: str
    things: Sequence[Thing]


def things_of_page(
    page: Sequence[EventRow], following: Sequence[EventRow]
) -> tuple[list[Thing], list[str]]:
    """Return the things that have an event of the page, whole if the rest is in `following`, the
    beginning of the next page; and the ids of the events that are taken from there."""
    own = {row.event.id for row in page}
    kept = [
        thing
        for thing in things([*page, *following])
        if any(row.event.id in own for row in thing.rows)
    ]
    ids = (row.event.id for thing in kept for row in thing.rows)
    return kept, [event_id for event_id in ids if event_id not in own]


def days(found: Iterable[Thing]) -> list[Day]:
    """Group what happened by day in the reader's time zone, keeping the order."""
    dated = groupby(found, key=lambda thing: localtime(thing.at).date() if thing.at else None)
    return [Day(_name(day), list(of_day)) for day, of_day in dated]


def _name(day: date | None) -> str:
    if day is None:
        return "Unknown date"
    today = localtime().date()
    if day == today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day:%A}, {day.day} {day:%B %Y}"
