"""Whether this host is at rest: no compute runs on it, and this worker has nothing to do.

Most rounds follow what computes and operations do. A host with 10,000 idle endpoints spent nearly
all its statements and processor time on finding that nothing had happened. So at rest these rounds
are done seldom (`upkeep.Round.at_rest`). Whoever begins something here ends the rest, and the
rounds go on as before, each after its usual interval.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.compute import compute

# Seconds without activity after which the host is at rest. Until then the rounds have found what
# the last activity has led to: a compute that died is found, made idle, and its log is copied.
AT_REST_AFTER = 30.0

_changing = threading.Lock()
# How much is under way, and when something last was, by the monotonic clock.
_under_way, _active_at = 0, time.monotonic()
# True if a round may wait for the end of the rest.
_is_waited_for = False
# Of the worker's event loop, which alone uses the event.
_loop: asyncio.AbstractEventLoop | None = None
_ended = asyncio.Event()


@contextmanager
def active() -> Iterator[None]:
    """The host is not at rest meanwhile, nor for a while after it. For threads."""
    global _under_way, _active_at, _is_waited_for
    with _changing:
        _under_way += 1
        if _is_waited_for and _loop is not None:
            _is_waited_for = False
            _loop.call_soon_threadsafe(_end_rest)
    try:
        yield
    finally:
        with _changing:
            _under_way -= 1
            _active_at = time.monotonic()


def is_at_rest() -> bool:
    global _active_at
    with _changing:
        if _under_way or compute.any_possibly_running():
            _active_at = time.monotonic()
        return time.monotonic() - _active_at > AT_REST_AFTER


async def wait_at_rest(seconds: float) -> bool:
    """If the host is at rest, wait until it is not, but no longer than this. Returns whether the
    host was at rest and is not any more. Raises RuntimeError in a second event loop."""
    global _is_waited_for, _loop
    _loop = asyncio.get_running_loop()
    with _changing:
        # Before the look: what begins after it ends the wait.
        _is_waited_for = True
    if not is_at_rest():
        return False
    try:
        await asyncio.wait_for(_ended.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _end_rest() -> None:
    global _ended
    before, _ended = _ended, asyncio.Event()
    before.set()
