"""Slows down those who keep trying wrong passwords, and nobody else."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_FREE_FAILURES = 3
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_FORGET_AFTER = 60.0
_MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class _Record:
    failures: int
    last: float


class FailurePace:
    """Only the answer to a wrong password is held back: a right one from the same address, behind
    which others may sit too, is never slower. Passwords are long and random, so what this guards
    is the proxy's time, not the password."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def pause(self, address: str) -> float:
        """Notes a failure from the address; the seconds to wait before telling it so."""
        now = self._clock()
        record = self._records.pop(address, None)
        if record is None or now - record.last > _FORGET_AFTER:
            record = _Record(failures=0, last=now)
        record.failures += 1
        record.last = now
        self._records[address] = record
        if len(self._records) > _MAX_ADDRESSES:
            self._records.popitem(last=False)
        beyond = min(record.failures - _FREE_FAILURES, 16)
        return min(_FIRST_PAUSE * 2.0 ** (beyond - 1), _LONGEST_PAUSE) if beyond > 0 else 0.0
