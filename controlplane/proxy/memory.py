"""What was read of endpoints, kept for as long as every change of them is heard: so connecting to
an active endpoint asks the database nothing. `changes` tells what is heard."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controlplane.proxy.errors import ControlPlaneSilent

Thing = TypeVar("Thing")

_MOST_ENDPOINTS = 50_000
# A database that answers nobody changes for nobody, so what was known goes on to be true. But
# it may be us who are cut off, and nobody's password shall be good for ever: in seconds.
_GOOD_IN_SILENCE = 300.0


@dataclass(eq=False, slots=True)
class _Reading:
    """One that is under way. Its answer may be older than a change that was heard meanwhile."""

    is_outdated: bool = False


class Memory(Generic[Thing]):
    """Things by endpoint and, within it, by name.

    While every change is heard, what is known is true. While none is heard, it may serve where
    the database does not answer; the next `begin` drops it, as nobody knows what was missed.
    """

    def __init__(self, *, is_silent: Callable[[], bool]) -> None:
        """`is_silent` says whether the database failed to answer when last asked."""
        self._is_silent = is_silent
        self._known: dict[str, dict[str, Thing]] = {}
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
        self._outdate(*self._readings)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint has changed."""
        self._known.pop(endpoint_id, None)
        self._outdate(endpoint_id)

    async def read(
        self,
        endpoint_id: str,
        name: str,
        ask: Callable[[], Awaitable[Thing]],
        *,
        lasts: Callable[[Thing], bool],
    ) -> Thing:
        """What is known, else what `ask` gives, which is kept where it `lasts`.

        Raises what `ask` raises, ControlPlaneSilent included.
        """
        known = self._known.get(endpoint_id, {}).get(name)
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
        if lasts(read) and not reading.is_outdated:
            self._keep(endpoint_id, name, read)
        return read

    def _is_good_in_silence(self) -> bool:
        return asyncio.get_running_loop().time() - self._deaf_since < _GOOD_IN_SILENCE

    def _keep(self, endpoint_id: str, name: str, thing: Thing) -> None:
        if len(self._known) >= _MOST_ENDPOINTS:
            self._known.clear()
        self._known.setdefault(endpoint_id, {})[name] = thing

    def _finish(self, endpoint_id: str, reading: _Reading) -> None:
        readings = self._readings[endpoint_id]
        readings.discard(reading)
        if not readings:
            del self._readings[endpoint_id]

    def _outdate(self, *endpoint_ids: str) -> None:
        for endpoint_id in endpoint_ids:
            for reading in self._readings.get(endpoint_id, ()):
                reading.is_outdated = True
