"""The attempts at operations that this process has under way, and whether they get on.

Every wait of an attempt ends within its patience; one that is still there after that hangs in
something that asks nobody, and holds its slot. That is for an operator to see.
"""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.patience import Patience
from controlplane.models import Operation, OperationStatus, Region

# Seconds that an attempt waits for its branches, and after which it looks up from that.
LOCK_WAIT, LOOK_UP = 60.0, 0.5
# Beyond its patience, in seconds: for what no attempt is bounded in, the writing of its end.
GRACE = 5.0

# Seconds without progress after which an attempt stands still, long before it is given up.
STILL_AFTER = 15.0

# Set once the worker is to end.
ending = threading.Event()


class HandedBack(Exception):
    """The attempt has not begun, as the worker ends; the job is another worker's to do."""


@dataclass(eq=False)
class UnderWay:
    operation: Operation
    # Until when it waits for its branches, and from when on its patience counts instead.
    waits_until: float
    patience: Patience | None = None
    # Set once somebody has cancelled it; see `hear_of_cancels`.
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    @property
    def hangs(self) -> bool:
        until = self.patience.deadline if self.patience else self.waits_until
        return time.monotonic() > until + GRACE

    @property
    def stands_still(self) -> bool:
        """Whether it has waited for its branches, or for its compute without progress, for long."""
        since = self.began
        if self.patience:
            since = self.patience.deadline - self.patience.bound
        return time.monotonic() > since + STILL_AFTER


# A set's own operations are atomic; a copy of it may be taken at any time.
_under_way: set[UnderWay] = set()


@contextmanager
def noted(operation: Operation) -> Iterator[UnderWay]:
    """Know of the attempt for as long as it is under way."""
    attempt = UnderWay(operation, waits_until=time.monotonic() + LOCK_WAIT)
    _under_way.add(attempt)
    try:
        yield attempt
    finally:
        _under_way.discard(attempt)


def hanging() -> list[UnderWay]:
    return [attempt for attempt in _under_way.copy() if attempt.hangs]


def standing_still() -> list[UnderWay]:
    return [attempt for attempt in _under_way.copy() if attempt.stands_still]


def hear_of_cancels(region: Region) -> None:
    """Have the attempts end whose operations somebody has cancelled. Asked some times a second,
    but only where an attempt lasts that long."""
    attempts = _under_way.copy()
    if not attempts:
        return
    ids = {attempt.operation.id for attempt in attempts}
    found = Operation.objects.filter(id__in=ids, status=OperationStatus.CANCELLING)
    cancelled = set(found.values_list("id", flat=True))
    for attempt in attempts:
        if attempt.operation.id in cancelled:
            attempt.cancelled.set()


@contextmanager
def holding_branches(branches: Collection[str]) -> Iterator[None]:
    """Hold an operation's branches, as `lock_branches` does.

    Raises LockTimeout after LOCK_WAIT, HandedBack once the worker is to end: what waits here has
    not begun, and must not keep the worker from its end.
    """
    deadline = time.monotonic() + LOCK_WAIT
    with ExitStack() as held:
        while not ending.is_set():
            try:
                held.enter_context(lock_branches(*branches, timeout=LOOK_UP))
            except LockTimeout:
                if time.monotonic() >= deadline:
                    raise
                continue
            yield
            return
    raise HandedBack
