"""What the worker knows of the service as its users get it: whether endpoints start, and whether
branches have their data. Measured by rounds, published with the worker's sign of life, and a
problem if it is bad."""

import logging
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.db.models import Exists, OuterRef

from controlplane.compute.branch_data import data_dir
from controlplane.models import UNFINISHED, Action, Branch, BranchState, Host, Operation

log = logging.getLogger(__name__)

# Starts of the last so many seconds are counted. A quarter of failures is a problem.
STARTS_WITHIN = 600
FAILED_PART = 0.25
# How many branches a round looks at, and how many without data are remembered.
SAMPLE, MOST_REMEMBERED = 200, 1_000
# Operations that remove or replace the data of a branch.
OF_THE_DATA = (
    *(Action.CREATE_TIMELINE, Action.CREATE_BRANCH),
    *(Action.DELETE_TIMELINE, Action.DELETE_TENANT, Action.RESTORE_FROM_STORE),
)

# Only the last start of an endpoint counts, so the retries of one client do not. An operation that
# was never begun says nothing about starts.
STARTS = """
SELECT count(*), count(*) FILTER (WHERE last.status = 'failed') FROM (
    SELECT DISTINCT ON (o.endpoint_id) o.status FROM controlplane_operation o
    JOIN controlplane_project p ON p.id = o.project_id
    WHERE o.action = 'start_compute' AND o.status IN ('finished', 'failed')
        AND o.updated_at > now() - %(within)s * interval '1 s'
        AND o.not_run_because IS NULL AND p.host_id = %(host)s
    ORDER BY o.endpoint_id, o.updated_at DESC
) AS last
"""


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

    def problems(self) -> list[tuple[str, str]]:
        """The names of problems, each with words for people."""
        found = []
        if self.failed and self.failed >= FAILED_PART * self.started:
            found.append(
                (
                    "starts_fail",
                    f"the last start failed for {self.failed} of {self.started} endpoints that "
                    f"were started within {STARTS_WITHIN // 60} minutes",
                )
            )
        if self.missing:
            found.append(
                (
                    "branches_without_data",
                    f"{len(self.missing)} branch{'es have' if len(self.missing) > 1 else ' has'} "
                    "no data in the state directory; the "
                    "worker's log names them",
                )
            )
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


def count_starts(host: Host) -> None:
    with connection.cursor() as cursor:
        cursor.execute(STARTS, {"host": host.id, "within": STARTS_WITHIN})
        quality.started, quality.failed = cursor.fetchone()


def sample_branches(host: Host) -> None:
    """Look whether the next branches, and those that had no data before, have data. The samples go
    round, so that each branch is looked at some time."""
    ready = Branch.objects.filter(
        project__host=host,
        project__deleted_at=None,
        deleted_at=None,
        current_state=BranchState.READY,
    )
    ids = ready.order_by("id").values_list("id", flat=True)
    sample = list(ids.filter(id__gt=quality.after)[:SAMPLE]) or list(ids[:SAMPLE])
    without = [branch for branch in {*sample, *quality.missing} if not _has_data(branch)]
    # Since the rows were read, an operation may have deleted a branch. While one replaces the data,
    # there is none for a moment.
    changing = Operation.objects.filter(
        project=OuterRef("project"), action__in=OF_THE_DATA, status__in=UNFINISHED
    )
    lost = ready.filter(~Exists(changing), id__in=without)
    missing = set(lost.values_list("id", flat=True)[:MOST_REMEMBERED])
    for branch in sorted(missing - quality.missing):
        log.error("a branch has no data", extra={"branch": branch})
    quality.missing, quality.sampled = missing, len(sample)
    quality.after = sample[-1] if sample else ""


def _has_data(branch_id: str) -> bool:
    return (data_dir(branch_id) / "global" / "pg_control").exists()
