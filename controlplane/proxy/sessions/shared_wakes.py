"""Shares one wake among all clients that wait for the same compute."""

import asyncio
from dataclasses import dataclass

from controlplane.proxy.directory.interface import ComputeAddress, Directory


@dataclass(slots=True)
class _PendingWake:
    task: asyncio.Task[ComputeAddress]
    waiting: int = 0


class SharedWakes:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._pending: dict[tuple[str, bool], _PendingWake] = {}

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None
    ) -> ComputeAddress:
        """As `Directory.wake`, but joins a call that is already under way. The last caller to stop
        waiting cancels the call."""
        key = (endpoint_id, pooled)
        pending = self._pending.get(key)
        if pending is None:
            call = self._directory.wake(endpoint_id, pooled=pooled, refused=refused)
            pending = _PendingWake(asyncio.ensure_future(call))
            self._pending[key] = pending
            pending.task.add_done_callback(lambda _: self._finish(key, pending))
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiting -= 1
            if pending.waiting == 0 and not pending.task.done():
                self._finish(key, pending)
                pending.task.cancel()

    def discard(self, endpoint_id: str) -> None:
        """Makes later callers wake anew. A call under way may return the old compute's address."""
        for pooled in (False, True):
            self._pending.pop((endpoint_id, pooled), None)

    def _finish(self, key: tuple[str, bool], pending: _PendingWake) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]
