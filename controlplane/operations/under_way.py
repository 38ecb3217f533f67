"""The attempts that this process has under way, and whether they make progress.

Every wait of an attempt ends within its patience. An attempt that is still there after that hangs
in code that does not check it, and holds its slot. An operator has to know of that.
"""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.patience import Patience
from controlplane.features import PutBack
from controlplane.models import Host, Operation, OperationStatus

# Seconds that an attempt waits for its branches, and between checks whether the worker is ending.
LOCK_TIMEOUT, ENDING_CHECK_INTERVAL = 60.0, 0.5
# Seconds beyond its patience, for what is not bounded: writing the attempt's end.
GRACE_SECONDS = 5.0

# Seconds without progress after which an attempt is reported as standing still, long before it is
# given up.
STANDSTILL_AFTER = 15.0

# Set once the worker is ending.
ending = threading.Event()


class HandedBack(PutBack):
    """The worker is ending and the attempt has not begun; another worker will do the job."""


@dataclass(eq=False)
class UnderWay:
    operation: Operation
    # The time until which it waits for its branches, until its patience counts instead.
    waits_until: float
    patience: Patience | None = None
    # Set once the operation was cancelled; see `hear_of_cancels`.
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    @property
    def hangs(self) -> bool:
        until = self.patience.deadline if self.patience else self.waits_until
        return time.monotonic() > until + GRACE_SECONDS

    @property
    def stands_still(self) -> bool:
        """Whether it has waited too long for its branches, or for its compute without progress."""
        since = self.began
        if self.patience:
            since = self.patience.deadline - self.patience.bound
        return time.monotonic() > since + STANDSTILL_AFTER


# The set's own operations are atomic, so any thread may copy it at any time.
_under_way: set[UnderWay] = set()


@contextmanager
def registered(operation: Operation) -> Iterator[UnderWay]:
    """Keep the attempt in the list of attempts for as long as it is under way."""
    attempt = UnderWay(operation, waits_until=time.monotonic() + LOCK_TIMEOUT)
    _under_way.add(attempt)
    try:
        yield attempt
    finally:
        _under_way.discard(attempt)


def hanging() -> list[UnderWay]:
    return [attempt for attempt in _under_way.copy() if attempt.hangs]


def standing_still() -> list[UnderWay]:
    return [attempt for attempt in _under_way.copy() if attempt.stands_still]


def hear_of_cancels(host: Host) -> None:
    """End the attempts of operations that were cancelled. This runs several times a second, and
    queries the database only if an attempt is under way."""
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

    Raises LockTimeout after LOCK_TIMEOUT seconds. Raises HandedBack once the worker is ending: an
    attempt that waits here has not begun, and must not delay the worker's exit.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    with ExitStack() as held:
        while not ending.is_set():
            try:
                held.enter_context(lock_branches(*branches, timeout=ENDING_CHECK_INTERVAL))
            except LockTimeout:
                if time.monotonic() >= deadline:
                    raise
                continue
            yield
            return
    raise HandedBack
