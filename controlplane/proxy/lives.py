"""Knows at once when a compute that pooled clients use has died: a pooler lives on without it, and
takes in what nobody will answer."""

import asyncio
import os
import select
from collections.abc import Callable

from controlplane.compute import compute


class Life:
    """Of one run of a compute. `descriptor` is readable once that has ended."""

    def __init__(self, run: str, descriptor: int) -> None:
        self.run = run
        self.descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._has_ended = False

    def has_ended(self) -> bool:
        """Costs a system call."""
        return self._has_ended or bool(self._poll.poll(0))

    def close(self) -> None:
        self._has_ended = True
        os.close(self.descriptor)


class Lives:
    """Must be used within one event loop. `ended` is called with the endpoint of each that has
    ended."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._by_endpoint: dict[str, Life] = {}

    def of(self, endpoint_id: str, branch_id: str, run: str) -> Life | None:
        """The life of the endpoint's compute, which runs on the branch; None where the kernel
        tells of none, or it is over."""
        life = self._by_endpoint.get(endpoint_id)
        if life is not None and life.run == run:
            return life
        descriptor = compute.open_life(branch_id, endpoint_id)
        if descriptor is None:
            return None
        if life is not None:
            self._forget(endpoint_id, life)
        life = self._by_endpoint[endpoint_id] = Life(run, descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._end, endpoint_id, life)
        return life

    def close(self) -> None:
        for endpoint_id, life in list(self._by_endpoint.items()):
            self._forget(endpoint_id, life)

    def _end(self, endpoint_id: str, life: Life) -> None:
        self._forget(endpoint_id, life)
        self._ended(endpoint_id)

    def _forget(self, endpoint_id: str, life: Life) -> None:
        asyncio.get_running_loop().remove_reader(life.descriptor)
        life.close()
        del self._by_endpoint[endpoint_id]
