"""Shares one wake among all clients that wait for the same compute."""

import asyncio
from dataclasses import dataclass

from controlplane.proxy.directory.interface import ComputeAddress, Directory


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[ComputeAddress]
    waiting: int = 0


class SharedWakes:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._flights: dict[tuple[str, bool], _Flight] = {}

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None
    ) -> ComputeAddress:
        """As `Directory.wake`, but joins a call that is already under way. The last caller to stop
        waiting cancels the call."""
        key = (endpoint_id, pooled)
        flight = self._flights.get(key)
        if flight is None:
            call = self._directory.wake(endpoint_id, pooled=pooled, refused=refused)
            flight = _Flight(asyncio.ensure_future(call))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._land(key, flight)
                flight.task.cancel()

    def forget(self, endpoint_id: str) -> None:
        """Makes later callers wake anew. A call under way may lead to the old compute."""
        for pooled in (False, True):
            self._flights.pop((endpoint_id, pooled), None)

    def _land(self, key: tuple[str, bool], flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
