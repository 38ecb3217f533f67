"""The one clock: the database's. Every time that is stored, or compared with a stored one, is told
by it, whichever host a process runs on and whatever that host's own clock says.

A process learns it from its connections: from each when it is made, and once a second from one that
is used (`database.base`). In between it goes by the kernel's count of seconds since the host
began to run, which nobody sets.
"""

import time
from datetime import UTC, datetime, timedelta

# Seconds after which the database is to be asked again: so short that where its own clock is set,
# nobody goes by the old time when the signs of life have the new one.
GOOD_FOR = 1.0

# What to add to `running_for` for the database's seconds since 1970; None until it was asked.
_offset: float | None = None
# The count of `running_for` when it was asked last.
_asked_at = 0.0


def running_for() -> float:
    """Seconds since the host began to run, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> datetime:
    """The database's time, to a few milliseconds; the host's while no database was asked yet."""
    if _offset is None:
        return _host_now()
    return datetime.fromtimestamp(running_for() + _offset, UTC)


def is_due() -> bool:
    """Whether the database is to be asked what time it is."""
    return _offset is None or running_for() - _asked_at > GOOD_FOR


def take_in(there: datetime, *, asked: float, answered: float) -> None:
    """Note what time it was `there`, in the database, between two counts of `running_for`.

    The answer came some time between them, nobody knows when. What fits in between stays as it is:
    an answer that a busy machine has delivered late makes the clock no worse.
    """
    global _offset, _asked_at
    least, most = there.timestamp() - answered, there.timestamp() - asked
    _offset = (least + most) / 2 if _offset is None else min(max(_offset, least), most)
    _asked_at = answered


def to_host(at: datetime) -> datetime:
    """What the clock of this host says at that moment: for its computes, which have no other."""
    return at + _host_ahead()


def from_host(at: datetime) -> datetime:
    """That moment of this host's clock, as a compute tells it, by the database's."""
    return at - _host_ahead()


def _host_ahead() -> timedelta:
    return _host_now() - now()


def _host_now() -> datetime:
    return datetime.now(UTC)
