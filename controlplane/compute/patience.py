"""How long the work under way may still take.

The engine gives every attempt the bound of its action (`operations.actions`). Whatever waits
asks here how long it may, so that a compute that hangs costs an attempt, never a worker's slot.
Work that gets on, a long copy or a long recovery, says so and gets its whole bound again: what
is bounded is standing still.

Here it also hears that nobody wants the work any more: whoever cancels it sets an event, which
every wait that asks looks at.

Held in a context variable: it belongs to the thread that works, and nothing needs to be passed
through every call between the engine and the wait.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

UNBOUNDED = float("inf")


class OutOfPatience(Exception):
    """The work under way stood still for as long as its action allows."""


class Cancelled(BaseException):
    """Nobody wants the work under way any more. No Exception: what goes on after a failure of a
    part must not go on after this."""


@dataclass
class Patience:
    bound: float
    deadline: float
    # Set, by any thread, to have the work end.
    cancelled: threading.Event = field(default_factory=threading.Event)


_current: ContextVar[Patience | None] = ContextVar("patience", default=None)
_look: ContextVar[Callable[[], object] | None] = ContextVar("look", default=None)


@contextmanager
def patience(seconds: float, *, cancelled: threading.Event | None = None) -> Iterator[Patience]:
    """Give what runs inside `seconds` without progress. It ends with `cancelled`; by default,
    with whatever ends the work that it is a part of."""
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
    """Seconds left; infinite where nobody set a bound. Raises OutOfPatience at none, Cancelled."""
    held = _current.get()
    if held is None:
        return UNBOUNDED
    heed_cancel()
    left = held.deadline - time.monotonic()
    if left <= 0:
        raise OutOfPatience(f"nothing happened for {held.bound:g} seconds")
    return left


def heed_cancel() -> None:
    """For work that is long but waits for nothing. Raises Cancelled."""
    held = _current.get()
    if held is not None and held.cancelled.is_set():
        raise Cancelled


@contextmanager
def looking(look: Callable[[], object]) -> Iterator[None]:
    """Call `look` whenever what runs inside says that it got on; what it raises ends the work."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def progressed() -> None:
    """Say that the work got on: the whole bound begins again. Raises OutOfPatience if late,
    Cancelled, and what whoever is looking raises."""
    if look := _look.get():
        look()
    held = _current.get()
    if held is not None:
        remaining()
        held.deadline = time.monotonic() + held.bound
