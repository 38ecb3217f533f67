"""What the worker's threads know of the store's lists, one per branch, what they have copied, and
when they try again after a failure.

The store is the truth. The lists in memory are what was written there last; after a failure a list
is read again. Several threads use them: one for the log, one for base copies, and those that attach
second hosts.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from controlplane import durable
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.host.wal import segment_start
from controlplane.database.base import release_connection
from controlplane.history.local.chain import Chain
from controlplane.history.store.layout import (
    BranchList,
    StoredChain,
    branch_folder,
    host_folder,
    list_name,
    read_list,
    write_list,
)
from controlplane.history.store.objects import Store, StoreFails, random_name
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store_status import state
from controlplane.models import HistoryChain, Host, LogReceiver

log = logging.getLogger(__name__)

# Seconds: the first and the longest pause after a failure.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 2.0, 60.0
Done = TypeVar("Done")
# In a chain's directory: the id that the chain has in the store.
STORED_AS = "stored-as"


class Copies:
    """The lists of one host's branches in the store."""

    def __init__(self, store: Store, *, region: str, host: str) -> None:
        self.store = store
        self.host = host_folder(region, host)
        # The object that each template is in, by its version.
        self.templates: dict[str, str] = {}
        self._lists: dict[str, BranchList] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        # The number of each branch's last list that was read or written.
        self.numbers: dict[str, int] = {}
        # Chains of which this process has checked that the store's log is that of the disk.
        self.checked: set[str] = set()
        # Bases that are being stored. No list names them yet, and `prune` spares them.
        self.in_flight: set[str] = set()

    def folder(self, branch_id: str) -> str:
        return branch_folder(self.host, branch_id)

    @contextmanager
    def holding(self, branch_id: str) -> Iterator[BranchList]:
        """The branch's list, which no other thread changes meanwhile. What the caller changes must
        be written. Raises StoreFails, Damaged, WrongKey."""
        with self._locks[branch_id]:
            branch = self._lists.get(branch_id)
            if branch is None:
                folder, known = self.folder(branch_id), self.numbers.get(branch_id, 0)
                found = read_list(self.store, folder) or BranchList(branch_id)
                if known and list_name(folder, known) > max(found.names, default=""):
                    raise StoreFails("the store does not list what was written there last")
                branch = self._lists[branch_id] = found
                self.numbers[branch_id] = max(known, found.number)
            try:
                yield branch
            except BaseException:
                # It may have changes that the store has not.
                del self._lists[branch_id]
                raise

    def write(self, branch: BranchList) -> None:
        """Store the list. The caller holds it. Raises StoreFails."""
        write_list(self.store, self.folder(branch.branch_id), branch)
        self.numbers[branch.branch_id] = branch.number

    def forget(self, branch_id: str) -> None:
        """Forget the list of a branch whose objects were deleted. The caller holds it."""
        self._lists[branch_id] = BranchList(branch_id)
        self.numbers.pop(branch_id, None)


def stored_chain(branch: BranchList, chain: Chain) -> StoredChain | None:
    """What the store has of a chain on disk; None for nothing."""
    known_as = id_of(chain)
    return next((one for one in branch.chains if one.id == known_as), None)


def id_of(chain: Chain) -> str | None:
    """The id of the chain in the store; None if it is not there."""
    try:
        return (chain.place / STORED_AS).read_text()
    except FileNotFoundError:
        return None


def new_id(chain: Chain) -> str:
    """Give the chain on disk another id in the store, durably. Raises OSError."""
    made = f"{chain.number:06}-{random_name()}"
    durable.write(Path(chain.place / STORED_AS), made.encode(), 0o600)
    return made


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
