"""What was read of endpoints, kept for as long as every change of them is heard: so connecting to
an active endpoint asks the database nothing. `changes` tells what is heard."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controlplane.proxy.errors import ControlPlaneSilent

Thing = TypeVar("Thing")

_MOST_LASTING = 50_000
# Of names that nobody has: anybody may ask for any number of them.
_MOST_PASSING = 5_000
_LONGEST_PASSING_NAME = 63
# A database that answers nobody changes for nobody, so what was known goes on to be true. But
# it may be us who are cut off, and nobody's password shall be good for ever: in seconds.
_GOOD_IN_SILENCE = 300.0


@dataclass(eq=False, slots=True)
class _Reading:
    """One that is under way. Its answer may be older than a change that was heard meanwhile."""

    is_outdated: bool = False


class _Shelf(Generic[Thing]):
    """At most so many things; past that, those of the endpoint go that was put there first."""

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


class Memory(Generic[Thing]):
    """Things by endpoint and, within it, by name.

    While every change is heard, what is known is true. While none is heard, it may serve where
    the database does not answer; the next `begin` drops it, as nobody knows what was missed.

    What does not last may be kept too, apart, so that it never takes the place of what does: for as
    long as every change is heard, and no longer.
    """

    def __init__(self, *, is_silent: Callable[[], bool], keeps_passing: bool = False) -> None:
        """`is_silent` says whether the database failed to answer when last asked."""
        self._is_silent = is_silent
        self._known: _Shelf[Thing] = _Shelf(_MOST_LASTING)
        self._passing: _Shelf[Thing] | None = _Shelf(_MOST_PASSING) if keeps_passing else None
        self._readings: dict[str, set[_Reading]] = {}
        self._hears = False
        self._deaf_since = 0.0

    def begin(self) -> None:
        """Every change is heard from now on."""
        self._hears = True
        self._known.clear()
        self._outdate(*self._readings)

    def end(self) -> None:
        """No change is heard from now on."""
        if self._hears:
            self._deaf_since = asyncio.get_running_loop().time()
        self._hears = False
        if self._passing is not None:
            self._passing.clear()
        self._outdate(*self._readings)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint has changed."""
        self._known.drop(endpoint_id)
        if self._passing is not None:
            self._passing.drop(endpoint_id)
        self._outdate(endpoint_id)

    def knows(self, endpoint_id: str, name: str) -> bool:
        """Whether `read` asks nobody."""
        return self._hears and self._find(endpoint_id, name) is not None

    async def read(
        self,
        endpoint_id: str,
        name: str,
        ask: Callable[[], Awaitable[Thing]],
        *,
        lasts: Callable[[Thing], bool],
    ) -> Thing:
        """What is known, else what `ask` gives, which is kept for good where it `lasts`.

        Raises what `ask` raises, ControlPlaneSilent included.
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
