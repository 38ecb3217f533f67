"""What the pages of runs show: the rows of the list, why a run failed, and the log of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from console.api.resources.events import Event
from console.api.resources.operations import Operation
from console.events.rows import event_row
from console.operations.runs import Names, OperationRow, Run, asked, operation_rows
from console.operations.steps import broken_off_in, step_rows
from console.operations.waterfall import span_of
from console.pages.addresses import url_or_none
from console.pages.outcomes import NOT_READ, Existing, lasting_words, not_run_for
from console.pages.statuses import Status, action_name, is_unfinished

# The events of a request are written within this time of its first one. Later ones are results.
AT_ONCE = timedelta(milliseconds=100)


@dataclass(frozen=True)
class RunRow:
    run: Run
    # What was requested, in words.
    title: str
    # "" if its id cannot be part of an address.
    url: str
    # Where it can be cancelled; "" if it cannot be.
    cancel_url: str
    status: Status
    branch_name: str
    operations: Sequence[OperationRow]
    # What is wrong with it, although nothing has failed.
    warning: str = ""

    @property
    def error(self) -> str:
        """The first error; of a cancelled run, who requested the cancel."""
        culprit = self.run.culprit
        if culprit:
            return culprit.error
        return next((each.error for each in self.run.operations if each.error), "")

    @property
    def error_action(self) -> str:
        """The action of the operation that has the error."""
        return next((each.action for each in self.run.operations if each.error == self.error), "")

    @property
    def went_wrong(self) -> bool:
        """Whether its error is that of a failure, even if of one attempt, and not of a cancel."""
        return self.status.tone in ("bad", "pending") and self.status.value != "cancelling"

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


def _cancel_url(project_id: str, run: Run) -> str:
    if not run.can_be_cancelled:
        return ""
    is_several = len(run.operations) > 1
    name, run_id = ("chain_cancel", run.id) if is_several else ("operation_cancel", run.first.id)
    return url_or_none(name, project_id, run_id)


def run_row(
    project_id: str, run: Run, names: Names, *, warning: str = "", title: str = ""
) -> RunRow:
    """Make the row. `title` is what was requested, if that is known better than by operations."""
    return RunRow(
        run=run,
        title=title or asked(run, names),
        url=run_url(project_id, run),
        cancel_url=_cancel_url(project_id, run),
        status=run.status,
        branch_name=names.branch(run.branch_id),
        operations=operation_rows(
            run.operations, names.branches.values(), name_of=partial(names.operation, run)
        ),
        warning=warning,
    )


# What is known about a failure besides its error

# The state after a failed operation and how to go on, by its action. This is how Perch behaves.
AFTER_A_FAILURE = {
    "start_compute": "The endpoint is idle, and a retry or a connection starts it again. If its "
    "data is damaged, restore the branch to an earlier moment or from a snapshot.",
    "apply_config": "The endpoint keeps its previous configuration.",
    "create_branch": "The branch has no data yet. Retry, start its endpoint, or delete the branch.",
    # The branch has been created since, or this cannot be distinguished from a restore.
    "create_branch_since": "The branch keeps its data.",
    "restore": "The branch keeps its previous data.",
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


def why_failed(run: Run, names: Names) -> Why | None:
    culprit = run.culprit
    if culprit is None:
        return None
    part = broken_off_in(culprit)
    attempt = f"attempt {culprit.failures_count}" if culprit.failures_count > 1 else ""
    return Why(
        operation_name=action_name(culprit.action),
        operation_id=not_run_for(culprit) or culprit.id,
        action=culprit.action,
        error=culprit.error,
        where=", ".join(filter(None, (f"in “{part}”" if part else "", attempt))),
        after=_after(run, culprit, names) if culprit.can_be_steered else "",
        victims=[
            action_name(each.action)
            for each in run.operations
            if each is not culprit and not_run_for(each)
        ],
    )


def _after(run: Run, culprit: Operation, names: Names) -> str:
    if culprit.action != "create_branch":
        return AFTER_A_FAILURE.get(culprit.action, "")
    if run.restores_past and run.branch_id in names.branches:
        return AFTER_A_FAILURE["restore"]
    if culprit.branch_id not in names.branches:
        # The branch is deleted, or it is the hidden branch of a snapshot.
        return ""
    if names.is_restore(run):
        return AFTER_A_FAILURE["restore"]
    is_made = names.branches[culprit.branch_id].current_state == "ready"
    return AFTER_A_FAILURE["create_branch_since" if is_made else "create_branch"]


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


def things(project_id: str, run: Run, names: Names, existing: Existing) -> list[Thing]:
    """Return the endpoints and branches that the run is about."""
    found: dict[tuple[str, str], Thing] = {}
    for operation in run.operations:
        if endpoint_id := operation.endpoint_id:
            is_gone = existing.endpoints is not None and endpoint_id not in existing.endpoints
            url = "" if is_gone else url_or_none("endpoint", project_id, endpoint_id)
            found["endpoint", endpoint_id] = Thing("Endpoint", "", endpoint_id, url, is_gone)
        is_hidden = bool(operation.past and operation.past.hidden)
        if (branch_id := operation.branch_id) and not is_hidden:
            is_gone = existing.branches is not None and branch_id not in existing.branches
            url = "" if is_gone else url_or_none("branch", project_id, branch_id)
            name = names.branch(branch_id)
            words = name if name != branch_id else ""
            found["branch", branch_id] = Thing("Branch", words, branch_id, url, is_gone)
    return list(found.values())


def retries_by_run(project_id: str, run: Run, retries: Iterable[Operation]) -> Mapping[str, str]:
    """Return the ids of the runs that repeated its work, by their addresses; the latest first."""
    ids = {operation.id for operation in run.operations}
    anew = [other for other in retries if other.retry_of in ids]
    found: dict[str, str] = {}
    for other in anew:
        again = Run([other])
        if url := run_url(project_id, again):
            found.setdefault(url, again.id)
    return found


def may_be_change(run: Run) -> bool:
    """Whether it may be a change of a role, a database or a setting: operations that apply it, or
    the suspend of an endpoint that is disabled."""
    actions = [operation.action for operation in run.operations]
    by_user = bool(run.initiator and run.initiator.type == "user")
    return actions[0] == "apply_config" or (actions == ["suspend_compute"] and by_user)


def change_by(event: Event | None) -> str:
    """Return the sentence of a change that no operations tell, such as that of a role; "" if they
    tell it: that an endpoint was started or suspended."""
    if event is None or event.type.endswith("_requested"):
        return ""
    return event_row(event, NOT_READ, {}).sentence


def requests_of(run: Run, newest_first: Sequence[Event]) -> list[Event]:
    """Return those of the events that record what the run's request was, the oldest first."""
    of_run = [
        event
        for event in reversed(newest_first)
        if run.first.id in event.operation_ids and not event.type.startswith("operation.")
    ]
    began = of_run[0].at if of_run else None
    return [event for event in of_run if began and event.at and event.at - began <= AT_ONCE]
