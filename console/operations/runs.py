"""Runs: all operations of one chain, which one request or one round of the platform scheduled. On a
server that knows no chains, each operation is a run of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from django.utils.timezone import localtime

from console.api.resources.actors import Actor
from console.api.resources.branches import Branch
from console.api.resources.operations import Operation, Past
from console.api.resources.snapshots import Snapshot
from console.pages.outcomes import not_run_for, shown_status, whole_duration_ms
from console.pages.statuses import (
    OPERATION_STATUSES,
    Status,
    action_name,
    can_be_cancelled,
    can_be_retried,
    is_unfinished,
    operation_status,
)


@dataclass(frozen=True)
class OperationRow:
    operation: Operation
    name: str
    status: Status
    branch_name: str
    # Milliseconds; so far, if it is unfinished. None if not known.
    duration_ms: int | None

    @property
    def is_unfinished(self) -> bool:
        return not self.status.terminal

    @property
    def went_wrong(self) -> bool:
        """Whether its error is that of a failure, even if of one attempt, and not of a cancel."""
        return self.status.tone == "bad" or self.status.value in ("scheduling", "running")


def operation_rows(
    operations: Iterable[Operation],
    branches: Iterable[Branch] = (),
    *,
    name_of: Callable[[Operation], str] = lambda operation: action_name(operation.action),
) -> list[OperationRow]:
    names = {branch.id: branch.name for branch in branches}
    return [
        OperationRow(
            operation=operation,
            name=name_of(operation),
            status=shown_status(operation),
            branch_name=names.get(operation.branch_id, operation.branch_id),
            duration_ms=_duration_ms(operation),
        )
        for operation in operations
    ]


def _duration_ms(operation: Operation) -> int | None:
    if is_unfinished(operation):
        # The clocks of console and server may differ: a negative duration is never shown.
        end: datetime | None = datetime.now(UTC)
    elif operation.total_duration_ms is not None:
        return operation.total_duration_ms
    else:
        end = operation.updated_at
    begin = _begin(operation)
    if begin is None or end is None:
        return None
    return max(0, int((end - begin).total_seconds() * 1000))


def _begin(operation: Operation) -> datetime | None:
    """Return when it was requested, to the millisecond if its steps were read: the API sends the
    time of the operation itself in whole seconds."""
    first = next((step.started_at for step in operation.steps if step.started_at), None)
    return first or operation.created_at


@dataclass(frozen=True)
class Run:
    # In the order in which they run; at least one.
    operations: Sequence[Operation]

    @property
    def first(self) -> Operation:
        return self.operations[0]

    @property
    def chain_id(self) -> str:
        """The chain's id; "" if the server knows no chains."""
        return self.first.chain_id

    @property
    def id(self) -> str:
        return self.chain_id or self.first.id

    @property
    def initiator(self) -> Actor | None:
        return self.first.initiator

    @property
    def status(self) -> Status:
        return _status([operation_status(operation) for operation in self.operations])

    @property
    def is_unfinished(self) -> bool:
        return bool(self.under_way)

    @property
    def under_way(self) -> Sequence[Operation]:
        return [operation for operation in self.operations if is_unfinished(operation)]

    @property
    def culprit(self) -> Operation | None:
        """The operation that failed itself, unlike those that were not run because of it."""
        failed = [each for each in self.operations if operation_status(each).tone == "bad"]
        return next((each for each in failed if not not_run_for(each)), next(iter(failed), None))

    @property
    def began_at(self) -> datetime | None:
        begun = [each.created_at for each in self.operations if each.created_at]
        return min(begun, default=None)

    @property
    def ended_at(self) -> datetime | None:
        """When the last operation ended; None while it goes on, or if the server does not say."""
        ended = [each.updated_at for each in self.operations if each.updated_at]
        return None if self.is_unfinished else max(ended, default=None)

    @property
    def duration_ms(self) -> int | None:
        """Milliseconds from the request to the last end, or so far; None if not known."""
        begin, end = self.began_at, self.ended_at
        if self.is_unfinished:
            begun = filter(None, map(_begin, self.operations))
            begin, end = min(begun, default=None), datetime.now(UTC)
        if begin is None or end is None:
            # The operations run one after the other, so that their durations can be added.
            spans = [each.total_duration_ms for each in self.operations]
            return sum(each for each in spans if each is not None) if any(spans) else None
        # The clocks of console and server may differ: a negative duration is never shown.
        lasted = max(0, round((end - begin).total_seconds() * 1000))
        if self.is_unfinished:
            return lasted
        return whole_duration_ms(lasted, [each.total_duration_ms or 0 for each in self.operations])

    @property
    def endpoint_id(self) -> str:
        return next((each.endpoint_id for each in self.operations if each.endpoint_id), "")

    @property
    def branch_id(self) -> str:
        """The branch that it is about. For the recovery of a past moment that a restore switches to
        or a client reads, that is not the hidden branch, which no list has."""
        past = self.hidden_past
        hidden = self.first.branch_id if past else ""
        found = (each.branch_id for each in self.operations)
        otherwise = past.branch_id if past else ""
        return next((each for each in found if each not in ("", hidden)), otherwise)

    @property
    def hidden_past(self) -> Past | None:
        """The past moment that is recovered first, as a hidden branch, for what follows."""
        past = self.first.past
        return past if past and past.hidden and len(self.operations) > 1 else None

    @property
    def restores_past(self) -> bool:
        """Whether a branch's data is replaced by that of a past moment."""
        following = [each.action for each in self.operations[1:]]
        return bool(self.hidden_past) and "create_branch" in following

    @property
    def is_reset(self) -> bool:
        """Whether a branch's data is replaced by its parent's."""
        return any(each.from_parent for each in self.operations)

    @property
    def can_be_cancelled(self) -> bool:
        return any(map(can_be_cancelled, self.operations))

    @property
    def can_be_retried(self) -> bool:
        return not self.is_unfinished and any(map(can_be_retried, self.operations))


def _status(statuses: Sequence[Status]) -> Status:
    """Return the status of the whole: what is under way, else the worst that has happened."""
    values = [status.value for status in statuses]
    if "scheduling" in values and any(status.terminal for status in statuses):
        return OPERATION_STATUSES["running"]
    for value in ("cancelling", "running", "scheduling", "failed", "error", "cancelled"):
        if value in values:
            return OPERATION_STATUSES[value]
    return statuses[-1]


def runs_of(newest_first: Iterable[Operation]) -> list[Run]:
    """Group operations into runs, the newest run first.

    In the list of one project, the operations of a chain are always next to each other.
    """
    groups = groupby(newest_first, key=lambda operation: operation.chain_id or operation.id)
    return [Run(list(found)[::-1]) for _, found in groups]


# What was requested


# The times of a snapshot and of its operation differ by at most this, as the server sends whole
# seconds of both.
AT_ONCE = timedelta(seconds=2)


@dataclass(frozen=True)
class Names:
    """The names for what operations are about."""

    branches: Mapping[str, Branch]
    snapshots: Sequence[Snapshot] = ()
    # Whether a run that lacks its branch is known to have made a snapshot.
    is_of_snapshot: bool = False

    @classmethod
    def of(cls, branches: Iterable[Branch], snapshots: Iterable[Snapshot] = ()) -> "Names":
        return cls({branch.id: branch for branch in branches}, list(snapshots))

    def lacks(self, run: Run) -> bool:
        """Whether the run copied a branch's data for what is not among the project's branches: a
        snapshot, whose data is a hidden branch, or a branch that has been deleted since."""
        actions = [operation.action for operation in run.operations]
        is_copy = actions == ["create_branch"] and bool(self.branches)
        return is_copy and run.branch_id not in self.branches

    def snapshot(self, run: Run) -> str:
        """Return the name of the snapshot that the run made, or its branch and moment; "" if it is
        unknown. Both were made in one transaction."""
        at = run.began_at
        made = [
            (abs(at - one.created_at), one.id, one)
            for one in self.snapshots
            if at and one.created_at and abs(at - one.created_at) <= AT_ONCE
        ]
        if not made:
            return ""
        _, _, found = min(made)
        if found.name != found.id or not (found.created_at and found.source_branch_id):
            return found.name
        return f"of {self.branch(found.source_branch_id)} {localtime(found.created_at):%H:%M:%S}"

    def operation(self, run: Run, operation: Operation) -> str:
        """Return the name of an operation of the run."""
        is_copy = operation.action == "create_branch" and self.lacks(run)
        if is_copy and (self.is_of_snapshot or self.snapshot(run)):
            return "Create snapshot"
        return action_name(operation.action)

    def branch(self, branch_id: str) -> str:
        found = self.branches.get(branch_id)
        return found.name if found else branch_id

    def is_older(self, branch_id: str, operation: Operation) -> bool:
        """Whether the branch existed before the operation was created."""
        found = self.branches.get(branch_id)
        if found is None or found.created_at is None or operation.created_at is None:
            return False
        return (operation.created_at - found.created_at).total_seconds() > 1

    def is_restore(self, run: Run) -> bool | None:
        """Whether the run replaces a branch's data.

        None if it may as well have created the branch, which is ready now.
        """
        actions = [operation.action for operation in run.operations]
        if run.restores_past or run.is_reset or actions[:2] == ["suspend_compute", "create_branch"]:
            return True
        if actions != ["create_branch"] or not self.is_older(run.branch_id, run.first):
            return False
        if self.branches[run.branch_id].current_state == "init":
            # The branch has never had data, so this is another attempt to create it.
            return False
        return None if run.first.retry_of else True


# What was requested, by the actions of a run. {branch} and {endpoint} are what it is about.
WHOLE_REQUESTS = {
    ("create_timeline", "start_compute"): "Create the project with branch {branch}",
    ("create_timeline",): "Create the first branch, {branch}",
    ("create_branch", "start_compute"): "Create branch {branch} with its endpoint",
    ("create_branch",): "Create branch {branch}",
    ("suspend_compute", "create_branch", "start_compute"): "Restore branch {branch}",
    ("suspend_compute", "start_compute"): "Restart endpoint {endpoint}",
    ("suspend_compute", "delete_timeline"): "Delete branch {branch} and its endpoint",
    ("delete_timeline",): "Delete branch {branch}",
    ("delete_tenant",): "Delete the project",
    ("start_compute",): "Start endpoint {endpoint}",
    ("suspend_compute",): "Suspend endpoint {endpoint}",
    ("apply_config",): "Change endpoint {endpoint}",
    ("apply_config", "suspend_compute"): "Change endpoint {endpoint}",
    ("check_availability",): "Check endpoint {endpoint}",
    ("upgrade_project",): "Upgrade the project",
    ("restore_from_store",): "Restore branch {branch} of a lost host",
    ("move_project",): "Move the project to another host",
    ("move_project", "start_compute"): "Move the project to another host",
}
# The same by the kind of initiator, if it is worded differently.
SAID_OTHERWISE = {
    ("client", ("create_branch", "start_compute")): "Start endpoint {endpoint}",
    ("platform", ("delete_timeline",)): "Remove data that nothing needs any more",
}
RESET = "Reset branch {branch} from its parent"
RESTORE = "Restore branch {branch}"
RESTORE_OR_CREATE = "Copy the data of branch {branch} again"
CREATE_SNAPSHOT = "Create snapshot {name}"
# What it made has been deleted since.
CREATE_GONE = "Create branch or snapshot, now deleted"


def asked(run: Run, names: Names) -> str:
    """Return what was requested, in words: “Create branch dev with its endpoint”."""
    actions = tuple(operation.action for operation in run.operations)
    begun_by = run.initiator.type if run.initiator else ""
    if run.hidden_past:
        return _of_the_past(run, run.hidden_past, names)
    words = SAID_OTHERWISE.get((begun_by, actions)) or WHOLE_REQUESTS.get(actions)
    if run.is_reset:
        words = RESET
    elif names.lacks(run):
        name = names.snapshot(run)
        return CREATE_SNAPSHOT.format(name=name) if name else CREATE_GONE
    elif actions == ("create_branch",):
        is_restore = names.is_restore(run)
        words = RESTORE_OR_CREATE if is_restore is None else RESTORE if is_restore else words
    about = {"branch": names.branch(run.branch_id), "endpoint": run.endpoint_id}
    if words is None or any(f"{{{name}}}" in words and not about[name] for name in about):
        return ", then ".join(action_name(action) or "An operation" for action in actions)
    return words.format(**about)


def _of_the_past(run: Run, past: Past, names: Names) -> str:
    moment = f"{localtime(past.at):%Y-%m-%d %H:%M:%S}" if past.at else f"LSN {past.lsn}"
    source = names.branch(past.branch_id)
    if not run.restores_past:
        return f"Query {source} as of {moment}"
    goal = moment if past.branch_id == run.branch_id else f"{moment} of {source}"
    return f"Restore {names.branch(run.branch_id)} to {goal}"
