"""The outcome of a page's operations: which are under way, which failures still matter, and what
failed. All pages and live regions take these words from here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Operation
from console.pages.statuses import NOT_RUN, Status, action_name, is_unfinished, operation_status
from console.templatetags.console_tags import duration

# An older failure is not mentioned any more; it is still in the list.
LATELY = timedelta(days=1)
# From this duration on, an unfinished operation's duration is shown. Most operations take tens of
# milliseconds; a large copy takes minutes.
LONG = timedelta(seconds=20)
# These create what they are about, so if they fail, it may be in no list.
MAKES_BRANCH = frozenset({"create_branch", "create_timeline"})
DELETES = frozenset({"delete_timeline", "delete_tenant"})


@dataclass(frozen=True)
class Existing:
    """The ids of the endpoints and branches that exist now; None if the page has not read them."""

    endpoints: frozenset[str] | None = None
    branches: frozenset[str] | None = None

    @classmethod
    def of(
        cls, endpoints: Iterable[Endpoint] | None, branches: Iterable[Branch] | None
    ) -> "Existing":
        return cls(
            endpoints=None if endpoints is None else frozenset(one.id for one in endpoints),
            branches=None if branches is None else frozenset(one.id for one in branches),
        )

    def has_gone(self, operation: Operation) -> bool:
        """Whether the endpoint or branch that the operation is about does not exist any more."""
        if operation.endpoint_id and self.endpoints is not None:
            return operation.endpoint_id not in self.endpoints
        is_maker = operation.action in MAKES_BRANCH
        if operation.branch_id and self.branches is not None and not is_maker:
            return operation.branch_id not in self.branches
        return False


NOT_READ = Existing()


@dataclass(frozen=True)
class Failure:
    """An operation that failed itself, and whose failure nothing has corrected since."""

    # The operation is None if the page has not read it.
    operation_id: str
    operation: Operation | None
    # The error as the API words it.
    error: str
    at: datetime | None

    @property
    def name(self) -> str:
        return (self.operation and action_name(self.operation.action)) or "An operation"

    @property
    def target_id(self) -> str:
        """The id of the endpoint or branch that it was about; "" if not known."""
        if self.operation is None:
            return ""
        return self.operation.endpoint_id or self.operation.branch_id


@dataclass(frozen=True)
class Outcome:
    """What a page says about its operations, in one line."""

    unfinished: int = 0
    # Milliseconds since the oldest unfinished one was created; None if that is not long ago.
    lasting_ms: int | None = None
    # The newest first; None if the page cannot know which failures still matter.
    failures: Sequence[Failure] | None = ()

    @property
    def failure(self) -> Failure | None:
        return self.failures[0] if self.failures else None

    @property
    def other_failures(self) -> int:
        return max(0, len(self.failures or ()) - 1)

    @property
    def ending(self) -> str:
        """The announcement for screen readers once no operation is under way any more."""
        if self.failures is None:
            return "No operation shown here is in progress any more."
        if not self.failures:
            return "All operations have finished."
        if self.other_failures:
            return f"Nothing is in progress. {len(self.failures)} operations have failed."
        failure = self.failures[0]
        target = f" of {failure.target_id}" if failure.target_id else ""
        return f"Nothing is in progress. {failure.name}{target} has failed."


NOTHING = Outcome()


def outcome(operations: Iterable[Operation], existing: Existing | None = NOT_READ) -> Outcome:
    """Return the outcome of `operations`, which are in the API's order, the newest first.

    `existing` is None if they are only a selection: which failures still matter is then not known.
    """
    shown = list(operations)
    unfinished = [operation for operation in shown if is_unfinished(operation)]
    return Outcome(
        unfinished=len(unfinished),
        lasting_ms=_lasting_ms(unfinished),
        failures=None if existing is None else _standing(shown, existing),
    )


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
    return round(lasting.total_seconds() * 1000) if lasting >= LONG else None


def _standing(newest_first: Sequence[Operation], existing: Existing) -> list[Failure]:
    by_id = {operation.id: operation for operation in newest_first}
    found: dict[str, Failure] = {}
    settled: set[tuple[str, str]] = set()
    deleted: set[str] = set()
    oldest = datetime.now(UTC) - LATELY
    for operation in newest_first:
        if operation_status(operation).tone == "good":
            settled.add(_what(operation))
        if operation.action in DELETES:
            deleted.add(operation.branch_id)
        if operation_status(operation).tone != "bad":
            continue
        culprit_id = not_run_for(operation) or operation.id
        culprit = by_id.get(culprit_id)
        about = culprit or operation
        is_over = (
            # It succeeded later, or was repeated and failed again: then the later failure counts.
            _what(about) in settled
            or existing.has_gone(about)
            or (about.branch_id in deleted and about.action not in DELETES)
            or (operation.updated_at is not None and operation.updated_at < oldest)
        )
        if not is_over and culprit_id not in found:
            error = culprit.error if culprit else operation.error
            found[culprit_id] = Failure(culprit_id, culprit, error, about.updated_at)
            if culprit:
                settled.add(_what(culprit))
    return list(found.values())


def _what(operation: Operation) -> tuple[str, str]:
    """Return the operation's action and target. Another operation with the same is a repetition."""
    return operation.action, operation.endpoint_id or operation.branch_id
