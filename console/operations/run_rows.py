"""What the pages of runs show: the rows of the list, why a run failed, and the log of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from console.api.resources.operations import Operation
from console.operations.runs import OperationRow, Run
from console.operations.waterfall import broken_off_in, span_of, step_rows
from console.pages.addresses import Existing, url_or_none
from console.pages.statuses import is_unfinished, lasting_words, not_run_for, operation_name


@dataclass(frozen=True)
class RunRow:
    project_id: str
    run: Run
    # What is wrong with it, although nothing has failed.
    warning: str = ""

    @cached_property
    def operations(self) -> Sequence[OperationRow]:
        return [*map(OperationRow, self.run.operations)]

    @cached_property
    def url(self) -> str:
        """Its page; "" if its id cannot be part of an address."""
        return run_url(self.project_id, self.run)

    @cached_property
    def cancel_url(self) -> str:
        """Where it can be cancelled; "" if it cannot be."""
        if not self.run.can_be_cancelled:
            return ""
        first, *others = self.run.operations
        name, own_id = ("chain_cancel", self.run.id) if others else ("operation_cancel", first.id)
        return url_or_none(name, self.project_id, own_id)

    @property
    def error(self) -> str:
        """The first error; of a cancelled run, who requested the cancel."""
        culprit = self.run.failed_operation
        if culprit:
            return culprit.error
        return next((each.error for each in self.run.operations if each.error), "")

    @property
    def error_action(self) -> str:
        return next((each.action for each in self.run.operations if each.error == self.error), "")

    @property
    def went_wrong(self) -> bool:
        """Whether its error is that of a failure, even if of one attempt, and not of a cancel."""
        return self.run.status.tone in ("bad", "pending") and self.run.status.value != "cancelling"

    @property
    def failures_count(self) -> int:
        return max(operation.failures_count for operation in self.run.operations)

    @property
    def lasting(self) -> str:
        """“for 40 s”, if it has gone on for unusually long; "" otherwise."""
        return lasting_words(self.run.under_way[0]) if self.run.under_way else ""


def run_url(project_id: str, run: Run) -> str:
    name, run_id = ("run", run.chain_id) if run.chain_id else ("operation", run.first.id)
    return url_or_none(name, project_id, run_id)


# What is known about a failure besides its error

# The state after a failed operation and how to go on, by its action, or by the kind of the request.
# This is how Perch behaves.
AFTER_A_FAILURE = {
    "start_compute": "The endpoint is idle, and a retry or a connection starts it again. If its "
    "data is damaged, restore the branch to an earlier moment or from a snapshot.",
    "apply_config": "The endpoint keeps its previous configuration.",
    "create_branch": "The branch has no data yet. Retry, start its endpoint, or delete the branch.",
    "reset_branch": "The branch keeps its previous data.",
    "restore_branch": "The branch keeps its previous data.",
    "create_timeline": "The branch has no data yet. Retry to create it.",
    "suspend_compute": "The endpoint may still be running. Check its state, or retry.",
    "delete_timeline": "The data may still use disk space. Retry to remove it.",
    "restore_from_store": "The branch has no data. Retry to restore it from the store.",
    "upgrade_project": "Every branch has its data, and the endpoints are idle. The next connection "
    "starts them.",
    "move_project": "The project stays on its host with all its data, and its endpoints run on.",
    "check_availability": "Nothing was changed. The next check or start shows whether the problem "
    "persists.",
}


@dataclass(frozen=True)
class Why:
    """Why a run failed, in the order in which users ask."""

    operation_name: str
    operation_id: str
    action: str
    error: str
    # The step that failed and the number of the attempt; "" if not known.
    where: str
    after: str
    # The operations that were not run because of it.
    victims: Sequence[str]


def why_failed(run: Run) -> Why | None:
    culprit = run.failed_operation
    if culprit is None:
        return None
    part = broken_off_in(culprit)
    attempt = f"attempt {culprit.failures_count}" if culprit.failures_count > 1 else ""
    # A copy may be of a new branch, or for another purpose.
    action = culprit.kind if culprit.action == "create_branch" else culprit.action
    return Why(
        operation_name=operation_name(culprit),
        operation_id=not_run_for(culprit) or culprit.id,
        action=culprit.action,
        error=culprit.error,
        where=", ".join(filter(None, (f"in “{part}”" if part else "", attempt))),
        after="" if culprit.superseded else AFTER_A_FAILURE.get(action, ""),
        victims=[
            operation_name(each)
            for each in run.operations
            if each is not culprit and not_run_for(each)
        ],
    )


# The log


def log_lines(run: Run) -> list[str]:
    """Return the steps as lines to copy into a message; the oldest first."""
    lines = []
    for operation in run.operations:
        head = f"{operation.action or 'operation'} {operation.id}"
        whole = span_of(operation)
        begin, end = whole or (operation.created_at, operation.updated_at)
        lines.append(f"{_stamp(begin)} {head} requested")
        for step in step_rows(operation, ()):
            notes = [*step.notes, *([f"error: {step.error}"] if step.error else [])]
            waits = [step.operation_id] if step.operation_id else []
            took = "" if step.duration_ms is None else f"  {step.duration_ms} ms"
            words = " ".join([step.label, *waits, *(f"· {note}" for note in notes)])
            lines.append(f"{_stamp(step.started_at)}    {' '.join(words.split())}{took}")
        status = operation.status or "unknown"
        ended = None if is_unfinished(operation) else end
        error = f": {' '.join(operation.error.split())}" if operation.error else ""
        lines.append(f"{_stamp(ended)}  {head}  {status}{error}")
    return lines


def _stamp(at: datetime | None) -> str:
    if at is None:
        return " " * 24
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


# What a run's page links to


@dataclass(frozen=True)
class Thing:
    """Something that the run is about: a link while it exists."""

    label: str
    words: str
    id: str
    url: str
    is_gone: bool


def things(project_id: str, run: Run, names: Mapping[str, str], existing: Existing) -> list[Thing]:
    """Return the endpoints and the branch that the run is about. `names` are those of branches."""
    about = [("Endpoint", one.endpoint_id) for one in run.operations if one.endpoint_id]
    about += [("Branch", run.branch_id)] if run.branch_id else []
    found = []
    for label, thing_id in dict.fromkeys(about):
        is_gone = existing.has_gone(label.lower(), thing_id)
        url = "" if is_gone else url_or_none(label.lower(), project_id, thing_id)
        found.append(Thing(label, names.get(thing_id, ""), thing_id, url, is_gone))
    return found


def retries_by_run(project_id: str, run: Run, retries: Iterable[Operation]) -> Mapping[str, str]:
    """Return the ids of the runs that repeated its work, by their addresses; the latest first."""
    ids = {operation.id for operation in run.operations}
    anew = (Run([other]) for other in retries if other.retry_of in ids)
    return {url: again.id for again in anew if (url := run_url(project_id, again))}
