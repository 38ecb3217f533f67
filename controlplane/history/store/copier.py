"""What the worker's threads have copied, and when they try again after a failure."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.host.wal import segment_start
from controlplane.database.base import release_connection
from controlplane.history.store.known_lists import Copies
from controlplane.history.store.layout import BranchList
from controlplane.history.store.objects import StoreFails
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store_status import state
from controlplane.models import HistoryChain, Host, LogReceiver

log = logging.getLogger(__name__)

# Seconds: the first and the longest pause after a failure.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 2.0, 60.0
Done = TypeVar("Done")


@dataclass
class Pause:
    """A growing pause between attempts, in seconds of time.monotonic()."""

    until: float = 0.0
    length: float = 0.0

    def grow(self) -> None:
        self.length = min(max(2 * self.length, MIN_RETRY_DELAY), MAX_RETRY_DELAY)
        self.until = time.monotonic() + self.length


@dataclass
class Copier:
    """The copy of one host. Several threads use it."""

    copies: Copies
    host: Host
    # Branches whose log, and whose bases, are to be looked at.
    logs_due: set[str] = field(default_factory=set)
    bases_due: set[str] = field(default_factory=set)
    # Of the branches whose history does not go on, those whose newest data the store does not have;
    # and the hidden ones whose data it has, to which nothing writes.
    data_behind: set[str] = field(default_factory=set)
    data_copied: set[str] = field(default_factory=set)
    _pauses: defaultdict[str, Pause] = field(default_factory=lambda: defaultdict(Pause))

    def attempt(self, what: str, do: Callable[[], Done]) -> Done | None:
        """Do it, unless its last failure was a moment ago. Returns None for that, and if it fails.
        `what` names it for the log and for the pause."""
        if time.monotonic() < self._pauses[what].until:
            return None
        # The store may be slow, and connections are few.
        release_connection()
        try:
            done = do()
        except Exception as error:
            # It may concern one branch only, whose files are untrusted.
            self._pauses[what].grow()
            # Other errors may name paths of this host.
            is_of_store = isinstance(error, (StoreFails, Damaged, WrongKey))
            state.error = str(error) if is_of_store else type(error).__name__
            if isinstance(error, TreeUntrusted):
                state.error = f"{what}: {error}"
            log.warning("not copied to the store", extra={"what": what, "error": repr(error)})
            return None
        self._pauses.pop(what, None)
        state.error = ""
        return done


def publish(branch: BranchList) -> None:
    """Tell the API until when the branch can be restored from the store."""
    newest = branch.chains[-1] if branch.chains else None
    if newest and newest.copied_at:
        row = HistoryChain.objects.filter(branch_id=branch.branch_id, number=newest.number)
        row.exclude(stored_at=newest.copied_at).update(stored_at=newest.copied_at)
        # A second host removes the log before this, which it has received.
        end = segment_start(newest.end)
        receivers = LogReceiver.objects.filter(branch_id=branch.branch_id)
        receivers.filter(stored_lsn__lt=end).update(stored_lsn=end)
