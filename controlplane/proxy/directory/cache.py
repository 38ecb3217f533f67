"""Remembers rows read of endpoints for as long as every change of them is received. So connecting
to an active endpoint asks the database nothing. `changes` reports what is received."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controlplane.proxy.wire.errors import ControlPlaneSilent

Thing = TypeVar("Thing")

_MOST_LASTING = 50_000
# For names that do not exist, of which anybody may ask for any number.
_MOST_PASSING = 5_000
_LONGEST_PASSING_NAME = 63
# Seconds. If the database does not answer, nobody can change anything, so what was known stays
# true. But it may be this host that is cut off, so a password must not stay valid for ever.
_GOOD_IN_SILENCE = 300.0


@dataclass(eq=False, slots=True)
class _Reading:
    """A read that is under way. Its answer may be older than a change received since it began."""

    is_outdated: bool = False


class _Shelf(Generic[Thing]):
    """At most `most` things. Beyond that, those of the endpoint that was added first are
    dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._by_endpoint: dict[str, dict[str, Thing]] = {}

    def get(self, endpoint_id: str, name: str) -> Thing | None:
        found = self._by_endpoint.get(endpoint_id)
        return found.get(name) if found is not None else None

    def put(self, endpoint_id: str, name: str, thing: Thing) -> None:
        things = self._by_endpoint.setdefault(endpoint_id, {})
        self._size += name not in things
        things[name] = thing
        while self._size > self._most:
            self.drop(next(iter(self._by_endpoint)))

    def drop(self, endpoint_id: str) -> None:
        self._size -= len(self._by_endpoint.pop(endpoint_id, ()))

    def clear(self) -> None:
        self._by_endpoint.clear()
        self._size = 0


class EndpointCache(Generic[Thing]):
    """Things by endpoint and, within an endpoint, by name.

    While every change is received, the remembered things are true. While none is, they may still
    serve if the database does not answer. The next `begin` drops them, because changes may have
    been missed.

    Things that do not last may be remembered too, for as long as every change is received. They are
    kept apart, so that they never displace things that last.
    """

    def __init__(self, *, is_silent: Callable[[], bool], keeps_passing: bool = False) -> None:
        """`is_silent` tells whether the database failed to answer the last time."""
        self._is_silent = is_silent
        self._known: _Shelf[Thing] = _Shelf(_MOST_LASTING)
        self._passing: _Shelf[Thing] | None = _Shelf(_MOST_PASSING) if keeps_passing else None
        self._readings: dict[str, set[_Reading]] = {}
        self._hears = False
        self._deaf_since = 0.0

    def begin(self) -> None:
        """Notes that every change is received from now on. Drops what lasted without that."""
        self._hears = True
        self._known.clear()
        self._outdate(*self._readings)

    def end(self) -> None:
        """Notes that no change is received from now on."""
        if self._hears:
            self._deaf_since = asyncio.get_running_loop().time()
        self._hears = False
        if self._passing is not None:
            self._passing.clear()
        self._outdate(*self._readings)

    def forget(self, endpoint_id: str) -> None:
        """Drops what is remembered of the endpoint, because it has changed."""
        self._known.drop(endpoint_id)
        if self._passing is not None:
            self._passing.drop(endpoint_id)
        self._outdate(endpoint_id)

    def knows(self, endpoint_id: str, name: str) -> bool:
        """True if `read` would not ask the database."""
        return self._hears and self._find(endpoint_id, name) is not None

    async def read(
        self,
        endpoint_id: str,
        name: str,
        ask: Callable[[], Awaitable[Thing]],
        *,
        lasts: Callable[[Thing], bool],
    ) -> Thing:
        """Returns the remembered thing, else what `ask` returns. That is remembered for good if
        `lasts` is true of it.

        Raises what `ask` raises, including ControlPlaneSilent.
        """
        known = self._find(endpoint_id, name)
        serves_silence = known is not None and self._is_good_in_silence()
        if known is not None and (self._hears or (serves_silence and self._is_silent())):
            return known
        reading = _Reading(is_outdated=not self._hears)
        self._readings.setdefault(endpoint_id, set()).add(reading)
        try:
            read = await ask()
        except ControlPlaneSilent:
            if known is not None and serves_silence:
                return known
            raise
        finally:
            self._finish(endpoint_id, reading)
        if not reading.is_outdated:
            if lasts(read):
                self._known.put(endpoint_id, name, read)
            elif self._passing is not None and len(name) <= _LONGEST_PASSING_NAME:
                self._passing.put(endpoint_id, name, read)
        return read

    def _find(self, endpoint_id: str, name: str) -> Thing | None:
        known = self._known.get(endpoint_id, name)
        if known is None and self._passing is not None:
            return self._passing.get(endpoint_id, name)
        return known

    def _is_good_in_silence(self) -> bool:
        return asyncio.get_running_loop().time() - self._deaf_since < _GOOD_IN_SILENCE

    def _finish(self, endpoint_id: str, reading: _Reading) -> None:
        readings = self._readings[endpoint_id]
        readings.discard(reading)
        if not readings:
            del self._readings[endpoint_id]

    def _outdate(self, *endpoint_ids: str) -> None:
        for endpoint_id in endpoint_ids:
            for reading in self._readings.get(endpoint_id, ()):
                reading.is_outdated = True
