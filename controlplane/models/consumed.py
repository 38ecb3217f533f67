"""What a branch, a project or an account consumed in a period of time."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Consumed:
    active_seconds: float = 0
    # Seconds times compute units.
    compute_seconds: float = 0
    written_bytes: int = 0
    # Sent to clients.
    transferred_bytes: int = 0
    # Bytes times hours: of branches without a parent, and of branches with one.
    root_byte_hours: float = 0
    child_byte_hours: float = 0
    # The same of the histories of branches.
    history_byte_hours: float = 0
    # Bytes that the existing branches store now, and that their histories take.
    stored_bytes: int = 0
    history_bytes: int = 0
    # When a client last used a compute, in this period or before; None for never.
    last_active: datetime | None = None

    @property
    def data_byte_hours(self) -> float:
        return self.root_byte_hours + self.child_byte_hours

    @property
    def byte_hours(self) -> float:
        """Of data and history."""
        return self.data_byte_hours + self.history_byte_hours


NOTHING = Consumed()


def period_of(time: datetime) -> datetime:
    """The start of the consumption period, a calendar month in UTC, that contains `time`."""
    return time.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_period(time: datetime) -> datetime:
    """The end of the period that contains `time`, which is the start of the next one."""
    return period_of(period_of(time) + timedelta(days=32))


def previous_period(time: datetime) -> datetime:
    """The start of the period before the one that contains `time`."""
    return period_of(period_of(time) - timedelta(days=1))
