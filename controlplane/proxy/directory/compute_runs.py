"""Notices at once when a compute with pooled clients has died. Its pooler keeps running and accepts
queries that no compute will answer."""

import asyncio
import os
import select
from collections.abc import Callable

from controlplane.compute.settings.pooler_settings import Version


class ComputeRun:
    """One run of a compute. `descriptor` becomes readable once the run has ended.

    `pooler_version` is PgBouncer's version, once the run is known to have a pooler.
    """

    def __init__(self, run: str, descriptor: int) -> None:
        self.run = run
        self.descriptor = descriptor
        self.pooler_version: Version | None = None
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._has_ended = False

    def has_ended(self) -> bool:
        """True if the run has ended. Makes a system call."""
        return self._has_ended or bool(self._poll.poll(0))

    def close(self) -> None:
        self._has_ended = True
        os.close(self.descriptor)


class ComputeRunWatcher:
    """Must be used within one event loop. `ended` is called with the id of each endpoint whose run
    has ended."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._by_endpoint: dict[str, ComputeRun] = {}

    def of(self, endpoint_id: str, run: str | None) -> ComputeRun | None:
        """Returns the endpoint's run, if it is watched."""
        watched = self._by_endpoint.get(endpoint_id)
        return watched if watched is not None and watched.run == run else None

    def watch(self, endpoint_id: str, run: str, descriptor: int) -> ComputeRun:
        """Watches the endpoint's run, given a descriptor from `compute.open_run`, which is closed
        with it. Returns the run."""
        if known := self.of(endpoint_id, run):
            # Another client's call was faster.
            os.close(descriptor)
            return known
        if watched := self._by_endpoint.get(endpoint_id):
            self._forget(endpoint_id, watched)
        watched = self._by_endpoint[endpoint_id] = ComputeRun(run, descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._end, endpoint_id, watched)
        return watched

    def forget_pooler(self, endpoint_id: str) -> None:
        """Forgets that the endpoint's compute has a pooler, which may have died."""
        if watched := self._by_endpoint.get(endpoint_id):
            watched.pooler_version = None

    def close(self) -> None:
        for endpoint_id, watched in list(self._by_endpoint.items()):
            self._forget(endpoint_id, watched)

    def _end(self, endpoint_id: str, watched: ComputeRun) -> None:
        self._forget(endpoint_id, watched)
        self._ended(endpoint_id)

    def _forget(self, endpoint_id: str, watched: ComputeRun) -> None:
        asyncio.get_running_loop().remove_reader(watched.descriptor)
        watched.close()
        del self._by_endpoint[endpoint_id]
