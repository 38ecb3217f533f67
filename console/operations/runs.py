"""Runs: all operations of one chain, which one request or one round of the platform scheduled. On a
server that knows no chains, each operation is a run of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby

from console.api.resources.operations import Operation
from console.pages.problems import quoted, translate_message
from console.pages.statuses import (
    OPERATION_STATUSES,
    Status,
    action_name,
    can_be_cancelled,
    can_be_retried,
    is_unfinished,
    not_run_for,
    operation_name,
    operation_status,
    shown_status,
    whole_duration_ms,
)

# The kinds of requests about a branch that no list has: it holds the data of a snapshot, say.
OF_HIDDEN_BRANCHES = ("create_snapshot", "delete_snapshot", "read_past", "remove_data")


@dataclass(frozen=True)
class OperationRow:
    operation: Operation

    @cached_property
    def name(self) -> str:
        return operation_name(self.operation)

    @cached_property
    def status(self) -> Status:
        return shown_status(self.operation)

    @cached_property
    def duration_ms(self) -> int | None:
        """Milliseconds; so far, if it is unfinished. None if not known."""
        end = self.operation.updated_at
        if is_unfinished(self.operation):
            end = datetime.now(UTC)
        elif self.operation.total_duration_ms is not None:
            return self.operation.total_duration_ms
        begin = _requested_at(self.operation)
        if begin is None or end is None:
            return None
        # The clocks of console and server may differ: a negative duration is never shown.
        return max(0, int((end - begin).total_seconds() * 1000))

    @property
    def went_wrong(self) -> bool:
        """Whether its error is that of a failure, even if of one attempt, and not of a cancel."""
        return self.status.tone == "bad" or self.status.value in ("scheduling", "running")


def _requested_at(operation: Operation) -> datetime | None:
    """Return when it was requested, to the millisecond if its steps were read: the API sends the
    time of the operation itself in whole seconds."""
    first = next((step.started_at for step in operation.steps if step.started_at), None)
    return first or operation.created_at


@dataclass(frozen=True)
class Run:
    # In the order in which they run; at least one.
    operations: Sequence[Operation]
    # Whether the first ones are left out.
    is_cut: bool = False

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

    @cached_property
    def title(self) -> str:
        """What was requested, in words; without the server's, the names of its operations."""
        if self.first.title:
            return quoted(translate_message(self.first.title))
        names = (action_name(each.action) or "An operation" for each in self.operations)
        return ", then ".join(names)

    @cached_property
    def status(self) -> Status:
        return _status([operation_status(operation) for operation in self.operations])

    @property
    def is_unfinished(self) -> bool:
        return bool(self.under_way)

    @property
    def under_way(self) -> Sequence[Operation]:
        return [operation for operation in self.operations if is_unfinished(operation)]

    @property
    def failed_operation(self) -> Operation | None:
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
            begun = filter(None, map(_requested_at, self.operations))
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
        """The branch that it is about; "" if it is about none that a list has."""
        if self.first.kind in OF_HIDDEN_BRANCHES:
            return ""
        return next((each.branch_id for each in self.operations[::-1] if each.branch_id), "")

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
    """Group operations into runs, the newest run first. In the list of one project, the operations
    of a chain are always next to each other."""
    groups = groupby(newest_first, key=lambda operation: operation.chain_id or operation.id)
    return [Run(list(found)[::-1]) for _, found in groups]
