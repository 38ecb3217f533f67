"""The outcome of a page's operations: which are under way, and which failures still need attention.
All pages and live regions take these words from here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.api.resources.operations import Operation
from console.pages.statuses import (
    NOT_RUN,
    Status,
    is_unfinished,
    operation_name,
    operation_status,
)
from console.templatetags.console_tags import duration

# An older failure is not mentioned any more; it is still in the list.
MAX_FAILURE_AGE = timedelta(days=1)
# From this duration on, an unfinished operation's duration is shown. Most operations take tens of
# milliseconds; a large copy takes minutes.
MIN_SHOWN_DURATION = timedelta(seconds=20)


@dataclass(frozen=True)
class Outcome:
    """What a page says about its operations, in one line."""

    unfinished: int = 0
    # Milliseconds since the oldest unfinished one was created; None if that is not long ago.
    lasting_ms: int | None = None
    # Those whose failure still needs attention, the newest first.
    failures: Sequence[Operation] = ()

    @property
    def failure(self) -> Operation | None:
        return self.failures[0] if self.failures else None

    @property
    def failed(self) -> str:
        """What has failed, in words."""
        return (self.failure and operation_name(self.failure)) or "An operation"

    @property
    def other_failures(self) -> int:
        return max(0, len(self.failures) - 1)

    @property
    def ending(self) -> str:
        """The announcement for screen readers once no operation is under way any more."""
        if self.failure is None:
            return "All operations have finished."
        if self.other_failures:
            return f"Nothing is in progress. {len(self.failures)} operations have failed."
        target = self.failure.endpoint_id or self.failure.branch_id
        about = f" of {target}" if target else ""
        return f"Nothing is in progress. {self.failed}{about} has failed."


NOTHING = Outcome()


def outcome(operations: Iterable[Operation]) -> Outcome:
    """Return the outcome of `operations`, which are in the API's order, the newest first."""
    shown = list(operations)
    unfinished = [operation for operation in shown if is_unfinished(operation)]
    return Outcome(
        unfinished=len(unfinished),
        lasting_ms=_lasting_ms(unfinished),
        failures=_failures(shown),
    )


def _failures(newest_first: Sequence[Operation]) -> list[Operation]:
    by_id = {operation.id: operation for operation in newest_first}
    oldest = datetime.now(UTC) - MAX_FAILURE_AGE
    found: dict[str, Operation] = {}
    for operation in newest_first:
        if operation_status(operation).tone != "bad":
            continue
        # Of operations that were not run, the one that failed itself, if it was read.
        culprit = by_id.get(operation.not_run_because, operation)
        is_old = operation.updated_at is not None and operation.updated_at < oldest
        if not (culprit.superseded or is_old):
            found.setdefault(operation.not_run_because or operation.id, culprit)
    return list(found.values())


def whole_duration_ms(lasted_ms: int, durations_ms: Sequence[int]) -> int:
    """Return how long operations took that ran one after the other, from how long it was between
    the request and the last end, and from how long each took.

    Times may be exact only to the second, while durations are exact to the millisecond. Without
    pauses, both differ by at most a second.
    """
    whole = sum(durations_ms)
    is_told = all(durations_ms) and abs(lasted_ms - whole) <= 1000
    return whole if is_told else max(lasted_ms, *durations_ms)


def lasting_words(operation: Operation) -> str:
    """Return how long an unfinished operation has existed, as “for 40 s”; "" if that is short."""
    lasting = _lasting_ms([operation]) if is_unfinished(operation) else None
    return f"for {duration(lasting)}" if lasting else ""


def not_run_for(operation: Operation) -> str:
    """Return the id of the operation whose failure kept this one from beginning; "" if none did."""
    return operation.not_run_because if operation_status(operation).tone == "bad" else ""


def shown_status(operation: Operation) -> Status:
    """Return the status to show: an operation that never began is not shown as failed itself."""
    return NOT_RUN if not_run_for(operation) else operation_status(operation)


def _lasting_ms(unfinished: Iterable[Operation]) -> int | None:
    begun = [operation.created_at for operation in unfinished if operation.created_at]
    lasting = datetime.now(UTC) - min(begun) if begun else timedelta()
    return round(lasting.total_seconds() * 1000) if lasting >= MIN_SHOWN_DURATION else None
