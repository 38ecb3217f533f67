"""The database's clock, which all processes use. Every time that is stored, or compared with a
stored one, comes from it, regardless of the clock of the host that a process runs on.

A process learns the time from its database connections: from each new connection, from each of its
signs of life, and every few seconds from a connection in use (`database.base`). In between it adds
the kernel's count of seconds since boot, which no administrator or NTP daemon changes.
"""

import time
from datetime import UTC, datetime, timedelta

# Seconds after which the database must be asked again. This is short, so that after a change of the
# database's clock no process compares signs of life of the new time with the old time. It is longer
# than the two seconds between two signs of life, which set the clock too.
OFFSET_TTL = 2.5

# Between these two is every time that a clock can have shown: Postgres's epoch, and this far from
# now. Such a time can also be calculated with, and converted to any time zone.
EARLIEST, MAX_AHEAD = datetime(2000, 1, 1, tzinfo=UTC), timedelta(days=1)

# Add this to `running_for` to get the database's seconds since 1970. None until it has answered.
_offset: float | None = None
# The value of `running_for` when the database last answered.
_asked_at = 0.0


def running_for() -> float:
    """Seconds since the host booted, including the time that it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> datetime:
    """The database's time, accurate to a few milliseconds. Until a database has answered, the
    host's time."""
    if _offset is None:
        return _host_now()
    return datetime.fromtimestamp(running_for() + _offset, UTC)


def is_due() -> bool:
    """Return whether the caller should ask the database for its time."""
    return _offset is None or running_for() - _asked_at > OFFSET_TTL


def adjust(database_time: datetime, *, sent_at: float, answered_at: float) -> None:
    """Note that the database's time was `database_time` at some moment between two values of
    `running_for`: `sent_at`, before the question was sent, and `answered_at`, after the answer was
    received.

    The exact moment is not known. If the present offset agrees with the answer, it does not change,
    so an answer that a busy machine delivered late does not make the clock less accurate.
    """
    global _offset, _asked_at
    least, most = database_time.timestamp() - answered_at, database_time.timestamp() - sent_at
    _offset = (least + most) / 2 if _offset is None else min(max(_offset, least), most)
    _asked_at = answered_at


def to_host(at: datetime) -> datetime:
    """Convert a time of the database's clock to this host's clock, the only one that the host's
    computes have."""
    return at + _host_ahead()


def from_host(at: datetime) -> datetime:
    """Convert a time of this host's clock, as a compute reports it, to the database's clock."""
    return at - _host_ahead()


def is_plausible(at: datetime) -> bool:
    """Whether the host's clock can have shown the time. One that comes from outside may be any."""
    return EARLIEST <= at <= _host_now() + MAX_AHEAD


def _host_ahead() -> timedelta:
    return _host_now() - now()


def _host_now() -> datetime:
    return datetime.now(UTC)
