"""The steps of the work under way, as they come: what is done, since when, and how far it is.

Code that does a step reports it here, and knows nothing of operations:

    with step("copying") as copying:
        copying.detail["bytes"] = clone_tree(…)

A caller that needs the steps passes a list to `recording`; without one, reporting costs almost
nothing. Steps follow each other and are not nested. The list is held in a context variable, as in
`patience`, so it belongs to the thread that works.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane import clock


@dataclass(eq=False)
class Step:
    """`detail` is JSON: whatever else there is to say about the step. It contains no paths."""

    name: str
    started_at: datetime
    finished_at: datetime | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    # The exception that ended it.
    error: BaseException | None = None

    @property
    def duration_ms(self) -> int | None:
        """None while the step is under way."""
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000)


_recorded: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@contextmanager
def recording(steps: list[Step]) -> Iterator[None]:
    """Append the steps of the work inside to the list as they begin. Other threads may read it at
    any time."""
    token = _recorded.set(steps)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def step(name: str, **detail: Any) -> Iterator[Step]:
    """Report what runs inside as a step of the work."""
    begun = Step(name, clock.now(), detail=detail)
    if (steps := _recorded.get()) is not None:
        steps.append(begun)
    try:
        yield begun
    except BaseException as error:
        begun.error = error
        raise
    finally:
        begun.finished_at = clock.now()


def reached(name: str, **detail: Any) -> None:
    """Report that the work has come to a point that takes no time."""
    with step(name, **detail):
        pass


def add_bytes(count: int) -> None:
    """Add to the bytes that the step under way has done, if there is one."""
    if (steps := _recorded.get()) and steps[-1].finished_at is None:
        detail = steps[-1].detail
        detail["bytes"] = detail.get("bytes", 0) + count
