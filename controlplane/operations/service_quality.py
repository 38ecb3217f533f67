"""What the worker knows of the service as its users get it: whether endpoints start, and whether
branches have their data. Measured by rounds, published with the worker's sign of life, and a
problem if it is bad."""

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Exists, OuterRef

from controlplane.compute.data.branch_data import data_dir
from controlplane.features import Problem
from controlplane.models import UNFINISHED, Action, Branch, BranchState, Host, Operation

log = logging.getLogger(__name__)

# Starts of the last so many seconds are counted. A quarter of failures is a problem.
STARTS_WINDOW_SECONDS = 600
PROBLEM_FRACTION = 0.25
# How many branches a round looks at, and how many without data are remembered.
SAMPLE_SIZE, MAX_REMEMBERED = 200, 1_000
# Operations that remove or replace the data of a branch.
DATA_ACTIONS = (
    *(Action.CREATE_TIMELINE, Action.CREATE_BRANCH),
    *(Action.DELETE_TIMELINE, Action.DELETE_TENANT, Action.RESTORE_FROM_STORE),
)


@dataclass
class Quality:
    """In this process's memory."""

    # Endpoints that were started lately, and those of them whose last start failed.
    started: int = 0
    failed: int = 0
    # How many branches the last round looked at, and which branches are known to lack their data.
    sampled: int = 0
    missing: set[str] = field(default_factory=set)
    # The id after which the next sample begins.
    after: str = ""

    def problems(self) -> list[Problem]:
        found = []
        if self.failed and self.failed >= PROBLEM_FRACTION * self.started:
            words = f"the last start failed for {self.failed} of {self.started} endpoints that "
            words += f"were started within {STARTS_WINDOW_SECONDS // 60} minutes"
            found.append(Problem("starts_fail", words))
        if self.missing:
            words = "1 branch has no data on this host; the worker's log names it"
            if (count := len(self.missing)) > 1:
                words = f"{count} branches have no data on this host; the worker's log names them"
            found.append(Problem("branches_without_data", words))
        return found

    def as_json(self) -> dict[str, Any]:
        """For the host's row."""
        return {
            "endpoints_started": self.started,
            "endpoints_failed": self.failed,
            "branches_sampled": self.sampled,
            "branches_without_data": len(self.missing),
        }


quality = Quality()

# The last start of each endpoint, the longest ago first: when it ended, by the monotonic clock, and
# whether it failed. Only the last one counts, so the retries of one client do not.
_starts: dict[str, tuple[float, bool]] = {}
_changing = threading.Lock()


def note_start(endpoint_id: str, *, has_failed: bool) -> None:
    """Note that this process has ended a start of the endpoint."""
    with _changing:
        _starts.pop(endpoint_id, None)
        _starts[endpoint_id] = time.monotonic(), has_failed


def count_starts(host: Host) -> None:
    """Count the starts that this worker has ended lately; those of an earlier worker are
    forgotten."""
    with _changing:
        since = time.monotonic() - STARTS_WINDOW_SECONDS
        for endpoint_id in [one for one, (at, _) in _starts.items() if at < since]:
            del _starts[endpoint_id]
        quality.started = len(_starts)
        quality.failed = sum(has_failed for _, has_failed in _starts.values())


def sample_branches(host: Host) -> None:
    """Look whether the next branches, and those that had no data before, have data. The samples go
    round, so that each branch is looked at some time."""
    ready = Branch.objects.filter(
        host=host,
        project__deleted_at=None,
        deleted_at=None,
        current_state=BranchState.READY,
    )
    ids = ready.order_by("id").values_list("id", flat=True)
    sample = list(ids.filter(id__gt=quality.after)[:SAMPLE_SIZE]) or list(ids[:SAMPLE_SIZE])
    without = [
        branch
        for branch in {*sample, *quality.missing}
        if not (data_dir(branch) / "global" / "pg_control").exists()
    ]
    # Since the rows were read, an operation may have deleted a branch. While one replaces the data,
    # there is none for a moment.
    changing = Operation.objects.filter(
        project=OuterRef("project"), action__in=DATA_ACTIONS, status__in=UNFINISHED
    )
    lost = ready.filter(~Exists(changing), id__in=without)
    missing = set(lost.values_list("id", flat=True)[:MAX_REMEMBERED])
    for branch in sorted(missing - quality.missing):
        log.error("a branch has no data", extra={"branch": branch})
    quality.missing, quality.sampled = missing, len(sample)
    quality.after = sample[-1] if sample else ""
