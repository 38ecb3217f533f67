"""The last sign of life of a host in the store: its time, and how far the log of each running
branch had been copied by then. It shows what is lost if the host is lost: of a running branch what
was committed since, even if it had written nothing for hours, and of an idle branch nothing, unless
the store lacked some of it.

    regions/<region>/<host>/signs/<time>-…      JSON; the newest counts
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError

from controlplane import clock
from controlplane.history.local.pulling import flushed_logs
from controlplane.history.store.known_lists import Copies
from controlplane.history.store.objects import Store, random_name
from controlplane.history.store.packing import Damaged, WrongKey

# The time between two signs while computes run.
SIGN_INTERVAL = timedelta(seconds=10)
# A branch whose log was looked at within this time counts as running: each is every five seconds.
RUNNING_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True)
class Sign:
    """A host's sign: see the module."""

    at: datetime
    # For each branch that runs, or of which the store lacks something, the time until which all
    # that was committed is in the store; None if that is not known.
    running: Mapping[str, datetime | None] = field(default_factory=dict)
    # The number of each branch's last list. Whoever can write to the store could put an earlier
    # one back.
    lists: Mapping[str, int] = field(default_factory=dict)

    def lost_since(self, branch_id: str, copied_at: datetime) -> datetime:
        """Return the time since which commits of the branch may be lost, if it was copied until
        `copied_at`: the sign's, if it did not run then and the store had all of it."""
        return max(copied_at, self.running.get(branch_id, self.at) or copied_at)


_SIGN = TypeAdapter(Sign)


def store_sign(
    copies: Copies,
    last: Sign | None,
    seen: Mapping[str, int],
    behind: Collection[str] = (),
    working: Collection[str] = (),
) -> Sign | None:
    """Store a sign if one is due, and delete the earlier ones. `seen` has the position until which
    each branch's log is in the store. Of the branches that are `behind`, the store lacks log or
    data; on those that are `working`, computes run. Returns the last sign. Raises StoreFails."""
    now, store = clock.now(), copies.store
    if last and now - last.at < SIGN_INTERVAL:
        return last
    looks = {
        one: flushed for one, flushed in flushed_logs.items() if now - flushed.at < RUNNING_TIMEOUT
    }
    if not looks and not behind and not working and last and not last.running:
        return last
    # Of a compute that could not be looked at for long, it is not known what it has committed.
    running: dict[str, datetime | None] = dict.fromkeys(working)
    for branch_id, flushed in looks.items():
        running[branch_id] = flushed.at if seen.get(branch_id) == flushed.lsn else None
    running |= dict.fromkeys(behind)
    folder = f"{copies.host}/signs"
    name = f"{folder}/{now:%Y%m%dT%H%M%S.%fZ}-{random_name()}"
    sign = Sign(now, running, copies.numbers.copy())
    store.put(name, _SIGN.dump_json(sign))
    store.delete(one for one in store.names(folder) if one != name)
    return sign


def last_sign(store: Store, host: str) -> Sign | None:
    """The last sign of the host with this folder; None if there is none that can be read: it only
    says what may be lost. Raises StoreFails."""
    with suppress(Damaged, WrongKey, ValidationError):
        newest = store.newest(f"{host}/signs")
        return _SIGN.validate_json(newest[1]) if newest else None
    return None
