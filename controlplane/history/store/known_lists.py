"""What this process knows of the store's lists: one per branch, read when it is first needed.

The store is the truth. The lists in memory are what was written there last; after a failure a list
is read again. Several threads use them: one for the log, one for base copies, and those that attach
second hosts.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import durable
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
