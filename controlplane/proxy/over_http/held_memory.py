"""How much of requests and answers the proxy holds at once: each may be large, and there may be
many."""

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.proxy.over_http.refusals import TooMuchHeld

# Of one process, in bytes.
MOST_HELD = 256 * 1024 * 1024


class HeldMemory:
    def __init__(self, most: int = MOST_HELD) -> None:
        self._left = most

    @contextmanager
    def hold(self) -> Iterator["Hold"]:
        """What is taken within is free again at the end."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            self._left += hold.taken

    def take(self, size: int) -> None:
        if size > self._left:
            raise TooMuchHeld
        self._left -= size


class Hold:
    """One request's part."""

    def __init__(self, memory: HeldMemory) -> None:
        self._memory = memory
        self.taken = 0

    def grow(self, size: int) -> None:
        """Raises TooMuchHeld."""
        self._memory.take(size)
        self.taken += size
