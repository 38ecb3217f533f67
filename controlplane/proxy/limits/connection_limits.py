"""Limits on the number of connections: in all, and for each account, endpoint and role. They keep
one user from taking up the whole proxy.

The proxy processes behind one port share their counts in memory: each process writes its own and
reads those of all. So a limit holds for all processes together, and none has to ask another. When a
proxy is restarted, the previous processes serve their clients until these end, beside the new
processes. The memory is therefore handed over (`listeners`), and each process uses a slot of it for
as long as it runs.
"""

import asyncio
import errno
import fcntl
import functools
import mmap
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from weakref import WeakValueDictionary

from controlplane.address_ranges import network_of
from controlplane.proxy.wire.errors import TooManyConnections

# No account has this id.
NO_ACCOUNT = 0
# For each account, in each process of the proxy.
MAX_OPENING_SESSIONS = 4
# Seconds after which a session no longer counts: its compute is slow or hangs, and must not keep
# the account's clients from other computes.
COUNTS_FOR = 0.25

# The most processes, those of all generations together.
SLOTS = 64
# Places in each slot. Two things with the same place are counted as one by the other processes.
# With so many places that is rare, and a limit then applies too early by the other thing's count.
_PLACES = 1 << 16
# The numbers of a slot before its places: the process's id, or 0 for a free slot; when it began, in
# seconds of the monotonic clock; one more than its sessions, or 0 if it accepts no clients.
_PID, _BEGAN, _SESSIONS = range(3)
_HEAD = 3
_BYTES_EACH = 4
_SLOT_SIZE = (_HEAD + _PLACES) * _BYTES_EACH
# Before the slots: a key, so that nobody outside can choose things that have the same place.
_KEY_SIZE = 16
_SIZE = _KEY_SIZE + SLOTS * _SLOT_SIZE


class SharedCounts:
    """Made before its processes are forked: anew, or from the `descriptor` of a previous proxy's
    counts. Processes that use another layout must not be given this one's descriptor: whoever
    changes the layout changes `listeners.FORMAT`."""

    def __init__(self, descriptor: int | None = None) -> None:
        is_new = descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create("perch-proxy-counts")
            os.ftruncate(descriptor, _SIZE)
        self.descriptor = descriptor
        memory = memoryview(mmap.mmap(descriptor, _SIZE))
        if is_new:
            memory[:_KEY_SIZE] = secrets.token_bytes(_KEY_SIZE)
        self.key = bytes(memory[:_KEY_SIZE])
        numbers = memory[_KEY_SIZE:].cast("i")
        each = _HEAD + _PLACES
        self.slots = [numbers[each * slot : each * (slot + 1)] for slot in range(SLOTS)]

    def claim(self) -> int:
        """Returns the number of a slot that this process alone uses until it ends. Raises OSError
        if no slot is free."""
        for number in range(SLOTS):
            if self._lock(number):
                return number
        raise OSError(errno.EAGAIN, "too many proxy processes")

    def of(self, number: int) -> "OwnCounts":
        """Returns the counts of this process, which uses the slot, set to zero."""
        return OwnCounts(self, number)

    def forget_ended(self) -> None:
        """Frees the slots of processes that have ended. Must be called by a process that has
        claimed no slot."""
        for number, slot in enumerate(self.slots):
            if slot[_PID] and self._lock(number):
                _clear(slot)
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, number)

    def in_the_way(self, wanted: int) -> list[int]:
        """Returns the ids of the processes that have to end so that `wanted` slots are free. They
        accept no clients any more, and those that began first come first."""
        used = [slot for slot in self.slots if slot[_PID]]
        ending = sorted((slot[_BEGAN], slot[_PID]) for slot in used if not slot[_SESSIONS])
        return [pid for _, pid in ending][: max(0, wanted - (SLOTS - len(used)))]

    def _lock(self, number: int) -> bool:
        """True if no other process uses the slot. The kernel releases the lock when this process
        ends. A forked process does not inherit it."""
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return False
        return True


class OwnCounts:
    def __init__(self, counts: SharedCounts, number: int) -> None:
        self._key = counts.key
        self._own = counts.slots[number]
        self._others = [slot for other, slot in enumerate(counts.slots) if other != number]
        _clear(self._own)
        self._own[_PID], self._own[_BEGAN] = os.getpid(), int(time.monotonic())

    def add(self, thing: Hashable, change: int) -> None:
        self._own[_place(self._key, thing)] += change

    def of_others(self, thing: Hashable) -> int:
        place = _place(self._key, thing)
        return sum(slot[place] for slot in self._others if slot[_PID])

    def note_sessions(self, count: int) -> None:
        """Sets the number of clients that this process has, authenticated or not."""
        self._own[_SESSIONS] = count + 1

    def accept_no_more(self) -> None:
        """Notes that this process accepts no further clients. `note_sessions` must not be called
        afterwards."""
        self._own[_SESSIONS] = 0

    def fewest_sessions(self) -> int | None:
        """Returns the number of sessions of the other process that has the fewest, of those that
        accept clients; None if there is none."""
        found = [slot[_SESSIONS] for slot in self._others if slot[_SESSIONS]]
        return min(found) - 1 if found else None


def _clear(slot: memoryview) -> None:
    slot.cast("B")[:] = bytes(slot.nbytes)


@lru_cache(maxsize=8192)
def _place(key: bytes, thing: Hashable) -> int:
    """The place of a thing. It is the same in every process: unlike Python's hashes, which differ
    between programs."""
    digest = blake2b(repr(thing).encode(), key=key, digest_size=4).digest()
    return _HEAD + int.from_bytes(digest) % _PLACES


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int = 10_000
    per_account: int = 5_000
    per_endpoint: int = 2_000
    per_role: int = 1_000
    # See `Admission.unproved`.
    unproved: int = 5_000
    unproved_per_network: int = 1_000

    def of_account(self, allowed: int | None) -> int:
        """Returns the limit of an account whose plan allows `allowed`; None for any number."""
        return self.per_account if allowed is None else min(self.per_account, allowed)


@dataclass(frozen=True, slots=True)
class Admission:
    """The identity that a client has proved by its password."""

    account_id: int
    endpoint_id: str
    role: str
    # See `Route.account_connections`.
    account_connections: int | None = None
    # Of a client that has proved none: the network that it comes from.
    network: str = ""

    @classmethod
    def unproved(cls, endpoint_id: str, address: str) -> "Admission":
        """Returns what a client counts as that is passed on unread to the endpoint's host. Only
        that host knows whether it has authenticated, so here it takes no place of those that
        have."""
        return cls(NO_ACCOUNT, endpoint_id, "", network=network_of(address))


class ConnectionCounts:
    """Counts the clients that have authenticated, or may have on another host. The others have a
    limit of their own (`PendingClients`). `shared` is given if several processes serve clients."""

    def __init__(self, limits: ConnectionLimits, shared: OwnCounts | None = None) -> None:
        self._limits = limits
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._shared = shared

    def add(self, admission: Admission) -> None:
        """Counts the client. Raises TooManyConnections, which names the limit, and then does not
        count it."""
        kinds = self._kinds(admission)
        # Count before comparing: of two processes that do so at once, each sees the other's.
        for key, _, _ in kinds:
            self._change(key, 1)
        for key, limit, whose in kinds:
            others = self._shared.of_others(key) if self._shared is not None else 0
            if self._counts[key] + others > limit:
                self.remove(admission)
                raise TooManyConnections(whose, limit)

    def remove(self, admission: Admission) -> None:
        for key, _, _ in self._kinds(admission):
            self._change(key, -1)

    def _change(self, key: tuple[object, ...], change: int) -> None:
        self._counts[key] += change
        if not self._counts[key]:
            del self._counts[key]
        if self._shared is not None:
            self._shared.add(key, change)

    def _kinds(self, admission: Admission) -> list[tuple[tuple[object, ...], int, str]]:
        """Returns, for each kind of limit, the key to count, the limit, and its owner in words."""
        if network := admission.network:
            most = self._limits.unproved_per_network
            return [
                (("unproved", network), most, f"the network {network}"),
                (("unproved",), self._limits.unproved, "the proxy"),
            ]
        account, endpoint, role = admission.account_id, admission.endpoint_id, admission.role
        of_account = self._limits.of_account(admission.account_connections)
        return [
            (("role", endpoint, role), self._limits.per_role, f'role "{role}" of {endpoint}'),
            (("endpoint", endpoint), self._limits.per_endpoint, f'endpoint "{endpoint}"'),
            (("account", account), of_account, "the endpoint's account"),
            (("total",), self._limits.total, "the proxy"),
        ]


class OpeningSessions:
    """Limits how many sessions each account opens in computes at once. Each costs the host a
    process of Postgres, so an account's many clients would otherwise take the processor from the
    others. Must be used within one event loop."""

    def __init__(self) -> None:
        self._by_account: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def counted(self, account_id: int) -> AsyncIterator[None]:
        """Waits until the account may open another session, and counts the block as its opening."""
        places = self._by_account.setdefault(account_id, asyncio.Semaphore(MAX_OPENING_SESSIONS))
        await places.acquire()
        release_once = functools.cache(places.release)
        expiry = asyncio.get_running_loop().call_later(COUNTS_FOR, release_once)
        try:
            yield
        finally:
            expiry.cancel()
            release_once()
