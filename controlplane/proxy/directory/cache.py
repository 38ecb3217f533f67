"""Remembers rows read of endpoints for as long as every change of them is received. So connecting
to an active endpoint asks the database nothing. `changes` reports what is received."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from controlplane.proxy.wire.errors import ControlPlaneUnavailable

Entry = TypeVar("Entry")
Ask = Callable[[], Awaitable[Entry]]
Test = Callable[[Entry], bool]

_MAX_PERMANENT = 50_000
# For names that do not exist, of which anybody may ask for any number.
_MAX_TEMPORARY = 5_000
_MAX_TEMPORARY_LENGTH = 63
# Seconds. If the database does not answer, nobody can change anything, so what was known stays
# true. But it may be this host that is cut off, so a password must not stay valid for ever.
_UNAVAILABLE_TTL = 300.0


class _Readings:
    """Reads of an endpoint that are under way, since its last change that was received."""


class _BoundedStore(Generic[Entry]):
    """At most `most` entries. Beyond that, those of the endpoint that was added first are
    dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._by_endpoint: dict[str, dict[str, Entry]] = {}

    def get(self, endpoint_id: str, name: str) -> Entry | None:
        found = self._by_endpoint.get(endpoint_id)
        return found.get(name) if found is not None else None

    def any_of(self, endpoint_id: str) -> Entry | None:
        return next(iter(self._by_endpoint.get(endpoint_id, {}).values()), None)

    def put(self, endpoint_id: str, name: str, entry: Entry) -> None:
        entries = self._by_endpoint.setdefault(endpoint_id, {})
        self._size += name not in entries
        entries[name] = entry
        while self._size > self._most:
            self.drop(next(iter(self._by_endpoint)))

    def drop(self, endpoint_id: str) -> None:
        self._size -= len(self._by_endpoint.pop(endpoint_id, ()))

    def clear(self) -> None:
        self._by_endpoint.clear()
        self._size = 0


class EndpointCache(Generic[Entry]):
    """Entries by endpoint and, within an endpoint, by name.

    While every change is received, the remembered entries are true. While none is, they may still
    serve if the database does not answer. The next `resume` drops them, because changes may have
    been missed.

    Entries that do not last may be remembered too, for as long as every change is received. They
    are kept apart, so that they never displace entries that last.
    """

    def __init__(
        self, *, is_unavailable: Callable[[], bool], keeps_temporary: bool = False
    ) -> None:
        """`is_unavailable` tells whether the database failed to answer the last time."""
        self._is_unavailable = is_unavailable
        self._known: _BoundedStore[Entry] = _BoundedStore(_MAX_PERMANENT)
        self._temporary: _BoundedStore[Entry] = _BoundedStore(
            _MAX_TEMPORARY if keeps_temporary else 0
        )
        # Kept by the reads themselves. An answer to those that are not here any more may be older
        # than a change.
        self._readings: WeakValueDictionary[str, _Readings] = WeakValueDictionary()
        self._is_tracking = False
        self._untracked_since = 0.0

    def resume(self) -> None:
        """Notes that every change is received from now on. Drops what lasted without that."""
        self._is_tracking = True
        self._known.clear()
        self._readings.clear()

    def suspend(self) -> None:
        """Notes that no change is received from now on."""
        if self._is_tracking:
            self._untracked_since = asyncio.get_running_loop().time()
        self._is_tracking = False
        self._temporary.clear()
        self._readings.clear()

    def invalidate(self, endpoint_id: str) -> None:
        """Drops what is remembered of the endpoint, because it has changed."""
        self._known.drop(endpoint_id)
        self._temporary.drop(endpoint_id)
        self._readings.pop(endpoint_id, None)

    def any_of(self, endpoint_id: str) -> Entry:
        """Returns an entry of the endpoint that `read` would return. Raises LookupError if there is
        none."""
        if self._is_tracking:
            for store in (self._known, self._temporary):
                if (found := store.any_of(endpoint_id)) is not None:
                    return found
        raise LookupError(endpoint_id)

    def known(self, endpoint_id: str, name: str) -> Entry | None:
        """Returns the remembered entry; None if there is none, or if changes may be missed."""
        return self._find(endpoint_id, name) if self._is_tracking else None

    async def read(
        self, endpoint_id: str, name: str, ask: Ask[Entry], *, is_permanent: Test[Entry]
    ) -> Entry:
        """Returns the remembered entry, else what `ask` returns. That is remembered for good if
        `is_permanent` is true of it.

        Raises what `ask` raises, including ControlPlaneUnavailable.
        """
        known = self._find(endpoint_id, name)
        is_usable = asyncio.get_running_loop().time() - self._untracked_since < _UNAVAILABLE_TTL
        if known is not None and (self._is_tracking or (is_usable and self._is_unavailable())):
            return known
        try:
            return await self.refresh(endpoint_id, name, ask, is_permanent=is_permanent)
        except ControlPlaneUnavailable:
            if known is not None and is_usable:
                return known
            raise

    async def refresh(
        self, endpoint_id: str, name: str, ask: Ask[Entry], *, is_permanent: Test[Entry]
    ) -> Entry:
        """Returns what `ask` returns, and remembers it as `read` does. Raises what `ask` raises."""
        readings = self._readings.setdefault(endpoint_id, _Readings())
        read = await ask()
        if self._is_tracking and self._readings.get(endpoint_id) is readings:
            if is_permanent(read):
                self._known.put(endpoint_id, name, read)
            elif len(name) <= _MAX_TEMPORARY_LENGTH:
                self._temporary.put(endpoint_id, name, read)
        return read

    def _find(self, endpoint_id: str, name: str) -> Entry | None:
        known = self._known.get(endpoint_id, name)
        return self._temporary.get(endpoint_id, name) if known is None else known
