"""What the worker knows of the history's copy off the host: written by the rounds of
`history.store`, published with the worker's sign of life, and a problem if the copy is behind."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controlplane import clock
from controlplane.features import Problem

# A copy that is behind for so long is a problem.
BEHIND_AFTER = timedelta(minutes=5)
# A daily check that has not succeeded for so long is a problem.
DRILL_OVERDUE_AFTER = timedelta(days=2)


class StoreUnusable(Exception):
    """The store cannot be read now; the message says why."""


@dataclass
class StoreState:
    """The state of the copy, in this process's memory."""

    # Whether the settings name a store.
    is_used: bool = False
    # Branches whose newest log is not in the store, with the moment when that was first seen.
    behind: dict[str, datetime] = field(default_factory=dict)
    # The last failure since something was last stored; "" if there was none.
    error: str = ""
    # Since when the rows have changed that are not in the store yet; None if they have not.
    rows_behind: datetime | None = None
    began_at: datetime | None = None
    # Whether the store keeps the keys of its older objects.
    keeps_keys: bool = False
    # Projects that keep no history, which are not in the store.
    projects_left_out: int = 0
    # When a branch was last restored from the store to check it, and why the last try failed.
    drilled_at: datetime | None = None
    drill_error: str = ""

    @property
    def behind_since(self) -> datetime | None:
        """Since when something is missing in the store."""
        since = [*self.behind.values(), *([self.rows_behind] if self.rows_behind else [])]
        return min(since, default=None)

    def problems(self) -> list[Problem]:
        if not self.is_used:
            return []
        now, found = clock.now(), []
        if self.behind_since and now - self.behind_since > BEHIND_AFTER:
            seconds = (now - self.behind_since).total_seconds()
            what = f"{len(self.behind)} branches" if self.behind else "the rows"
            words = f"the copy of the history in the store is {seconds:.0f} s behind for {what}"
            words += f": {self.error}" if self.error else ""
            found.append(Problem("history_copy_behind", words))
        last = self.drilled_at or self.began_at
        if self.drill_error:
            found.append(Problem("history_drill_fails", self.drill_error))
        elif last and now - last > DRILL_OVERDUE_AFTER:
            words = f"no restore was tried since {last:%Y-%m-%d}"
            found.append(Problem("history_drill_overdue", words))
        return found

    def as_json(self) -> dict[str, Any]:
        """For the host's row."""
        if not self.is_used:
            return {}
        return {
            "behind_branches": len(self.behind),
            "behind_since": self.behind_since and self.behind_since.isoformat(),
            "error": self.error,
            "projects_left_out": self.projects_left_out,
            "drilled_at": self.drilled_at and self.drilled_at.isoformat(),
            "drill_error": self.drill_error,
        }


state = StoreState()
