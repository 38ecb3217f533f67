"""How long the work under way may still take.

The engine gives every attempt the bound of its action (`operations.actions.table`). Every wait asks
here how long it may take. So a compute that hangs costs an attempt, never a worker's slot. Work
that makes progress, such as a long copy or a long recovery, reports it and gets its whole bound
again: only standing still is bounded.

A wait may last, so what the work holds for others is released before it (`before_waits`).

Work also learns here that it was cancelled: the canceller sets an event, which every wait that asks
checks.

The bound is held in a context variable. So it belongs to the thread that works, and need not be
passed through every call between the engine and the wait.
"""

import math
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

UNBOUNDED = float("inf")


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


Readable = TypeVar("Readable", bound=int | HasDescriptor)


class OutOfPatience(Exception):
    """The work under way made no progress for as long as its action allows."""


class Cancelled(BaseException):
    """The work under way was cancelled. Not an Exception, since code that handles the failure of a
    part and goes on must not go on after this."""


def _release_nothing() -> None:
    pass


# Called before each wait. The worker, the proxy and its host process set the function that returns
# the thread's database connection to the pool.
before_waits: Callable[[], None] = _release_nothing


@dataclass
class Patience:
    bound: float
    deadline: float
    # Any thread may set this to end the work.
    cancelled: threading.Event = field(default_factory=threading.Event)


_current: ContextVar[Patience | None] = ContextVar("patience", default=None)
_look: ContextVar[Callable[[], object] | None] = ContextVar("look", default=None)


@contextmanager
def patience(seconds: float, *, cancelled: threading.Event | None = None) -> Iterator[Patience]:
    """Let the work inside take `seconds` without progress. It ends when `cancelled` is set; by
    default, when the surrounding work is cancelled."""
    around = _current.get()
    if cancelled is None:
        cancelled = around.cancelled if around else threading.Event()
    held = Patience(seconds, time.monotonic() + seconds, cancelled)
    token = _current.set(held)
    try:
        yield held
    finally:
        _current.reset(token)


def remaining() -> float:
    """Seconds left; infinite without a bound. Raises OutOfPatience if none are left, Cancelled."""
    check_cancelled()
    held = _current.get()
    if held is None:
        return UNBOUNDED
    left = held.deadline - time.monotonic()
    if left <= 0:
        raise OutOfPatience(f"nothing happened for {held.bound:g} seconds")
    return left


def check_cancelled() -> None:
    """For long work that waits for nothing. Raises Cancelled."""
    before_waits()
    held = _current.get()
    if held is not None and held.cancelled.is_set():
        raise Cancelled


@contextmanager
def on_progress(look: Callable[[], object]) -> Iterator[None]:
    """Call `look` whenever the work inside reports progress; an exception from it ends the work."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def report_progress() -> None:
    """Report progress: the whole bound begins again. Raises OutOfPatience if it is too late,
    Cancelled, and what the function given to `on_progress` raises."""
    if look := _look.get():
        look()
    held = _current.get()
    if held is not None:
        remaining()
        held.deadline = time.monotonic() + held.bound


def readable(*sources: Readable, timeout: float | None = None) -> list[Readable]:
    """Wait up to `timeout` seconds, or for ever, and return the sources that can be read now, also
    those that have ended. Unlike `select.select`, it works with more than 1,023 open files."""
    poll = select.poll()
    by_descriptor = {}
    for source in sources:
        descriptor = source if isinstance(source, int) else source.fileno()
        by_descriptor[descriptor] = source
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(None if timeout is None else math.ceil(timeout * 1000))
    return [by_descriptor[descriptor] for descriptor, _ in ready]
