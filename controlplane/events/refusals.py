"""Records refused keys, passwords and addresses as events. Refusals are counted before they are
written, so that an attack fills neither the memory of the process nor the table of events.

`note` costs a lookup in a dict. Every WRITE_INTERVAL seconds the counts are written: one event for
all equal refusals, that is of the same kind, account, name, endpoint and address. At most
MAX_SEPARATE different refusals of an account and kind are counted separately, and at most
MAX_ENTRIES of all accounts; the others are counted together. Once an account has had MAX_PER_DAY
events of a kind within a day, its further refusals of that kind are counted together as well, and
written once an hour.
"""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.db import InterfaceError, OperationalError, close_old_connections
from django.db.models import Count

from controlplane import clock
from controlplane.actors import Actor, ActorType
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Endpoint, Event

log = logging.getLogger(__name__)

WRITE_INTERVAL = 10.0  # seconds
MAX_ENTRIES, MAX_SEPARATE = 1000, 50
MAX_PER_DAY = 500
# How long refusals that exceed MAX_PER_DAY are counted together before they are written.
LATE_AFTER = timedelta(hours=1)
# Characters of a name that are kept. Postgres's names have at most this many, but a client may send
# any number.
MAX_NAME_LENGTH = 63


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was refused. The caller must leave out the password or key that was sent, and names that
    do not exist, because users sometimes enter a password in place of a name."""

    kind: EventType
    # None if no account is concerned: for an unknown key, or an endpoint that does not exist.
    account_id: int | None = None
    # The name of the role or of the key; "" if it does not exist.
    name: str = ""
    address: str = ""
    endpoint_id: str | None = None
    api_key_id: int | None = None
    # True if this stands for many refusals that are counted together.
    is_others: bool = False

    @property
    def others(self) -> "Refusal":
        return Refusal(self.kind, self.account_id, is_others=True)


@dataclass(slots=True)
class Tally:
    """How often a refusal happened, and the times of the first and the last."""

    count: int
    since: datetime
    last: datetime

    def add(self, other: "Tally") -> None:
        self.count += other.count
        self.since = min(self.since, other.since)
        self.last = max(self.last, other.last)


class Refusals:
    """The refusals of a process. Any thread may call `note`. Nothing is written until `begin` is
    called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[Refusal, Tally] = {}
        self._apart: Counter[tuple[str, int | None]] = Counter()
        self._ending = threading.Event()
        self._writer: threading.Thread | None = None

    def note(self, refusal: Refusal) -> None:
        now = clock.now()
        self._add(replace(refusal, name=refusal.name[:MAX_NAME_LENGTH]), Tally(1, now, now))

    def begin(self) -> None:
        """Start a thread that writes the refusals regularly."""
        self._writer = threading.Thread(target=self._run, name="refusals", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Stop the thread, and write the remaining refusals."""
        self._ending.set()
        if self._writer is not None:
            self._writer.join()
        self._write_down(is_last=True)

    def write(self, *, is_last: bool = False) -> None:
        """Write the counted refusals, except those that must wait; with `is_last`, write those too.
        Raises OperationalError and InterfaceError; the counts are kept then."""
        with self._lock:
            taken, self._tallies, self._apart = self._tallies, {}, Counter()
        if not taken:
            return
        try:
            due, kept = _divided(taken, is_last=is_last)
            record(*_events(due))
        except (OperationalError, InterfaceError):
            kept = taken
            raise
        finally:
            for refusal, tally in kept.items():
                self._add(refusal, tally)

    def _run(self) -> None:
        while not self._ending.wait(WRITE_INTERVAL):
            self._write_down()

    def _write_down(self, *, is_last: bool = False) -> None:
        try:
            self.write(is_last=is_last)
        except (OperationalError, InterfaceError) as error:
            log.warning("refusals not written", extra={"error": str(error)})
        finally:
            close_old_connections()

    def _add(self, refusal: Refusal, tally: Tally) -> None:
        with self._lock:
            counted = self._counted_as(refusal)
            known = self._tallies.get(counted)
            if known is not None:
                known.add(tally)
                return
            self._tallies[counted] = tally
            self._apart[counted.kind, counted.account_id] += 1

    def _counted_as(self, refusal: Refusal) -> Refusal:
        if refusal in self._tallies:
            return refusal
        if refusal.others not in self._tallies and len(self._tallies) >= MAX_ENTRIES:
            return Refusal(refusal.kind, is_others=True)
        if self._apart[refusal.kind, refusal.account_id] >= MAX_SEPARATE:
            return refusal.others
        return refusal


Tallies = dict[Refusal, Tally]


def _divided(taken: Tallies, *, is_last: bool) -> tuple[Tallies, Tallies]:
    """Split the counts into those to write now and those to keep. Refusals beyond MAX_PER_DAY
    events of an account and kind are counted together, and kept for LATE_AFTER unless `is_last`."""
    written = _written_lately({refusal.account_id for refusal in taken})
    room = defaultdict(lambda: MAX_PER_DAY, {key: MAX_PER_DAY - n for key, n in written.items()})
    due: Tallies = {}
    together: Tallies = {}
    for refusal, tally in taken.items():
        key = refusal.kind.value, refusal.account_id
        if room[key] > 0:
            room[key] -= 1
            due[refusal] = tally
        elif known := together.get(refusal.others):
            known.add(tally)
        else:
            together[refusal.others] = tally
    late = clock.now() - LATE_AFTER
    for refusal, tally in list(together.items()):
        if is_last or tally.since <= late:
            due[refusal] = together.pop(refusal)
    return due, together


def _written_lately(accounts: set[int | None]) -> Mapping[tuple[str, int | None], int]:
    """How many events of refusals were written in the last day, by kind and account."""
    written: dict[tuple[str, int | None], int] = {}
    recent = Event.objects.filter(
        type__in=(
            EventType.API_KEY_REFUSED,
            EventType.CONNECTION_REFUSED,
            EventType.CONNECTION_NOT_ALLOWED,
        ),
        at__gt=clock.now() - timedelta(days=1),
    )
    known = [account for account in accounts if account is not None]
    for events in (recent.filter(account__in=known), recent.filter(account=None)):
        for kind, account, count in events.values_list("type", "account").annotate(Count("id")):
            written[kind, account] = count
    return written


def _events(tallies: Tallies) -> list[Event]:
    wanted = {refusal.endpoint_id for refusal in tallies if refusal.endpoint_id}
    places = {
        endpoint_id: (project_id, branch_id)
        for endpoint_id, project_id, branch_id in Endpoint.objects.filter(
            id__in=wanted
        ).values_list("id", "project_id", "branch_id")
    }
    events = []
    for refusal, tally in tallies.items():
        project_id, branch_id = places.get(refusal.endpoint_id or "", (None, None))
        events.append(
            happened(
                refusal.kind,
                summary=_summary(refusal, tally),
                account_id=refusal.account_id,
                project=project_id,
                branch=branch_id,
                endpoint=refusal.endpoint_id,
                actor=_actor(refusal),
                changes={
                    "count": {"from": 0, "to": tally.count},
                    "at": {"from": _printed(tally.since), "to": _printed(tally.last)},
                },
            )
        )
    return events


def _actor(refusal: Refusal) -> Actor:
    is_key = refusal.kind == EventType.API_KEY_REFUSED
    return Actor(
        ActorType.USER if is_key else ActorType.CLIENT,
        name=refusal.name,
        api_key_id=refusal.api_key_id,
        address=refusal.address,
    )


def _summary(refusal: Refusal, tally: Tally) -> str:
    if refusal.kind == EventType.API_KEY_REFUSED:
        named = f'the key "{refusal.name}", which is no longer valid'
        what, why = "request", "with " + (named if refusal.name else "an unknown key")
    elif refusal.kind == EventType.CONNECTION_NOT_ALLOWED:
        named = f' as the role "{refusal.name}"' if refusal.name else ""
        what, why = "connection", f"the address is not allowed{named}"
    else:
        named = f'a wrong password of the role "{refusal.name}"'
        what = "connection"
        why = "with " + (named if refusal.name else "an unknown role or endpoint")
    if refusal.is_others:
        why = _WHY_OTHERS[refusal.kind]
    times = f"{tally.count} {what}s were" if tally.count > 1 else f"A {what} was"
    origin = f" from {refusal.address}" if refusal.address else ""
    since = f", since {_printed(tally.since)}" if tally.count > 1 else ""
    return f"{times} refused{origin}: {why}{since}"


_WHY_OTHERS = {
    EventType.API_KEY_REFUSED: "with invalid keys",
    EventType.CONNECTION_REFUSED: "with wrong passwords or names",
    EventType.CONNECTION_NOT_ALLOWED: "their addresses are not allowed",
}


def _printed(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


refusals = Refusals()
