"""The parts of the work under way, as they come: what is done, since when, and how far it is.

Whoever does a part says so here, and knows nothing of operations:

    with step("copying") as copying:
        copying.detail["bytes"] = clone_tree(…)

Who wants to know gives a list (`recording`); without one it costs next to nothing. Parts follow
each other and lie in none other. Held in a context variable, as `patience` is: it belongs to the
thread that works.
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
    """`detail` is JSON: what there is to say of it beside its times. Nothing in it is a path."""

    name: str
    started_at: datetime
    finished_at: datetime | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    # What has broken it off.
    error: BaseException | None = None

    @property
    def duration_ms(self) -> int | None:
        """None while it is under way."""
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000)


_recorded: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@contextmanager
def recording(steps: list[Step]) -> Iterator[None]:
    """Have the steps of what runs inside added to the list as they begin. Others may read it at
    any time."""
    token = _recorded.set(steps)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def step(name: str, **detail: Any) -> Iterator[Step]:
    """What runs inside is a part of the work."""
    begun = Step(name, now(), detail=detail)
    if (steps := _recorded.get()) is not None:
        steps.append(begun)
    try:
        yield begun
    except BaseException as error:
        begun.error = error
        raise
    finally:
        begun.finished_at = now()


def reached(name: str, **detail: Any) -> None:
    """The work has come to a point that takes no time."""
    with step(name, **detail):
        pass


def add_bytes(count: int) -> None:
    """So many bytes more were done by the part under way, if there is one."""
    if (steps := _recorded.get()) and steps[-1].finished_at is None:
        detail = steps[-1].detail
        detail["bytes"] = detail.get("bytes", 0) + count


def now() -> datetime:
    return clock.now()
