"""The attempts at operations that this process has under way, and whether they get on.

Every wait of an attempt ends within its patience; one that is still there after that hangs in
something that asks nobody, and holds its slot. That is for an operator to see.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.compute.patience import Patience
from controlplane.models import Operation

# Beyond its patience, in seconds: for what no attempt is bounded in, the writing of its end.
GRACE = 5.0


@dataclass(eq=False)
class UnderWay:
    operation: Operation
    # Until when it waits for its branches, and from when on its patience counts instead.
    waits_until: float
    patience: Patience | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def hangs(self) -> bool:
        until = self.patience.deadline if self.patience else self.waits_until
        return time.monotonic() > until + GRACE


# A set's own operations are atomic; a copy of it may be taken at any time.
_under_way: set[UnderWay] = set()


@contextmanager
def noted(operation: Operation, *, lock_wait: float) -> Iterator[UnderWay]:
    """Know of the attempt for as long as it is under way. `lock_wait` is in seconds."""
    attempt = UnderWay(operation, waits_until=time.monotonic() + lock_wait)
    _under_way.add(attempt)
    try:
        yield attempt
    finally:
        _under_way.discard(attempt)


def hanging() -> list[UnderWay]:
    return [attempt for attempt in _under_way.copy() if attempt.hangs]
