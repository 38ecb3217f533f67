"""Lets other requests have their turn during long work. All requests of a process share one thread,
which gevent gives to another only when one waits."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Seconds of work after which others have their turn, and of the pause in which they have it. After
# a pause of 0, gevent may go on with the same request for up to 50 times.
MAX_WORK, PAUSE = 0.01, 0.0001

_began = 0.0


def let_others() -> None:
    """Pause if this process has worked for MAX_WORK without a pause."""
    global _began
    if time.monotonic() - _began >= MAX_WORK:
        time.sleep(PAUSE)
        _began = time.monotonic()


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Yield the items. Others have their turn in between."""
    for item in items:
        let_others()
        yield item
