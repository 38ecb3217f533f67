"""The health of this host's worker: its problems, published with each of its signs of life.

To watch something new, add a function to CHECKS, or to a feature's `checks`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from django.conf import settings

from controlplane.compute.host.accounts import shared_account
from controlplane.compute.host.binaries import majors
from controlplane.compute.host.confinement import can_deny_ports, landlock_version
from controlplane.compute.host.space import disk_problem
from controlplane.features import Problem, features
from controlplane.operations.locks import LEFT_TOO_LONG, left_for_long
from controlplane.operations.queue.runner import MANY_RUNS, MAX_JOB_RETRY_DELAY, failing
from controlplane.operations.rounds.catalog_mending import endpoints_behind
from controlplane.operations.service_quality import quality
from controlplane.operations.under_way import STANDSTILL_AFTER, hanging, standing_still

log = logging.getLogger(__name__)

# A round is late if it has not ended for this many of its intervals and for this many seconds.
LATE_AFTER_INTERVALS, LATE_AFTER = 3, 5.0


@dataclass
class RoundRecord:
    """How a round went last, and when it last ended."""

    interval: float
    ended: float
    error: str | None = None


class Rounds:
    """The last results of the worker's rounds, by name. Each name has one writer."""

    def __init__(self) -> None:
        self._records: dict[str, RoundRecord] = {}

    def begin(self, name: str, interval: float) -> None:
        self._records[name] = RoundRecord(interval, time.monotonic())

    def rest(self, name: str, interval: float) -> None:
        """The next time, the round ends within about so many seconds from now."""
        record = self._records[name]
        record.interval, record.ended = interval, time.monotonic()

    def end(
        self, name: str, *, error: Exception | None = None, failures: Sequence[Exception] = ()
    ) -> None:
        """Note the end: by an error, or with failures for some of those that it was for."""
        record = self._records[name]
        record.ended = time.monotonic()
        record.error = type(error).__name__ if error else None
        if failures:
            record.error = f"{type(failures[0]).__name__}, for {len(failures)}; the log names them"

    def problems(self) -> list[Problem]:
        found = []
        for name, record in list(self._records.items()):
            since = time.monotonic() - record.ended
            if record.error:
                found.append(Problem("round_fails", f"{name} fails: {record.error}"))
            elif since > max(LATE_AFTER, LATE_AFTER_INTERVALS * record.interval):
                found.append(Problem("round_late", f"{name} has not ended for {since:.0f} s"))
        return found


rounds = Rounds()


def hanging_operations() -> list[Problem]:
    actions = Counter(attempt.operation.action for attempt in hanging())
    return [
        Problem("operations_hang", f"{action}: {count} running for longer than they may")
        for action, count in sorted(actions.items())
    ]


def operations_standing_still() -> list[Problem]:
    """Report lanes of which at least a quarter of the slots is held by operations that make no
    progress. Each may be within its bound, but their accounts' other operations have to wait for a
    slot."""
    lanes = Counter(attempt.operation.lane for attempt in standing_still())
    return [
        Problem(
            "operations_stand_still",
            f"{lane}: {count} of {settings.LANE_SLOTS[lane]} slots are held by operations that "
            f"have made no progress for {STANDSTILL_AFTER:.0f} s",
        )
        for lane, count in sorted(lanes.items())
        if count >= settings.LANE_SLOTS[lane] / 4
    ]


def failing_jobs() -> list[Problem]:
    since = time.monotonic() - 2 * MAX_JOB_RETRY_DELAY
    count = sum(at > since for at in list(failing.values()))
    words = f"{count} jobs have been tried more than {MANY_RUNS} times; the log says why they fail"
    return [Problem("jobs_fail", words)] if count else []


def busy_projects() -> list[Problem]:
    words = f"{(count := left_for_long())} projects were locked for {LEFT_TOO_LONG:.0f} s of rounds"
    return [Problem("projects_busy", words)] if count else []


def full_disk() -> list[Problem]:
    found = disk_problem()
    return [Problem("disk_nearly_full", found)] if found else []


def catalogs_behind() -> list[Problem]:
    count = endpoints_behind()
    words = f"{count} active endpoints lack roles or databases that were made through the API"
    return [Problem("catalogs_behind", words)] if count else []


def unconfined_upgrades() -> list[Problem]:
    words = "the kernel has no Landlock, so only its account confines an upgrade to another version"
    words += " of Postgres: what the project's owner wrote might open whatever that account may"
    is_confined = landlock_version() or len(majors()) == 1
    return [] if is_confined else [Problem("upgrades_unconfined", words)]


def unprotected_ports() -> list[Problem]:
    words = "the kernel has no Landlock for TCP ports (Linux 6.7), so a compute that was taken over"
    words += " may take the port of a service that restarts"
    is_protected = can_deny_ports() or shared_account() is not None
    return [] if is_protected else [Problem("ports_unprotected", words)]


CHECKS: Sequence[Callable[[], list[Problem]]] = (
    rounds.problems,
    hanging_operations,
    operations_standing_still,
    failing_jobs,
    busy_projects,
    full_disk,
    catalogs_behind,
    unconfined_upgrades,
    unprotected_ports,
    quality.problems,
)


def problems() -> list[Mapping[str, str]]:
    """Return all problems that the checks find, as JSON. A check that raises is a problem too."""
    found: list[Problem] = []
    for check in (*CHECKS, *(one for feature in features() for one in feature.checks)):
        try:
            found += check()
        except Exception as error:
            log.exception("check failed", extra={"check": check.__qualname__})
            found.append(Problem("check_fails", f"{check.__qualname__}: {type(error).__name__}"))
    return [asdict(problem) for problem in found]
