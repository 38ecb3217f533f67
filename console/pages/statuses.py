"""The table of all statuses and states: the label, icon and tone of each, and if it is final; and
the outcome of a page's operations: which are under way, and which failures still need attention."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.api.resources.account import Delivery
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Operation
from console.templatetags.console_tags import duration


@dataclass(frozen=True)
class Status:
    value: str
    label: str
    # The icon. Its shape differs too, so that nothing depends on colour alone.
    shape: str
    tone: str
    terminal: bool = True
    # Only other servers of this API return it.
    is_foreign: bool = False


def _by_value(*statuses: Status) -> dict[str, Status]:
    return {status.value: status for status in statuses}


OPERATION_STATUSES = _by_value(
    Status("scheduling", "Waiting", "waiting", "pending", terminal=False),
    Status("running", "In progress", "running", "pending", terminal=False),
    Status("finished", "OK", "check", "good"),
    Status("failed", "Error", "cross", "bad"),
    Status("cancelling", "Cancelling", "running", "pending", terminal=False),
    Status("cancelled", "Cancelled", "cancelled", "quiet"),
    Status("error", "Error", "cross", "bad", is_foreign=True),
    Status("skipped", "Skipped", "skip", "quiet", is_foreign=True),
)

# For an operation that the API calls failed because another one of its chain has failed.
NOT_RUN = Status("not_run", "Not run", "skip", "quiet")

DELIVERY_STATUSES = _by_value(
    Status("pending", "Pending", "waiting", "pending", terminal=False),
    Status("delivered", "Delivered", "check", "good"),
    Status("failed", "Failed", "cross", "bad"),
)

ACTIVE = Status("active", "Active", "awake", "good")
IDLE = Status("idle", "Idle", "asleep", "calm")
STOPPED = Status("stopped", "Stopped", "stopped", "quiet")
ENDPOINT_STATES = (ACTIVE, IDLE, STOPPED)

# By action: its name, and the word beside an endpoint's state while it is under way.
ACTIONS = {
    "apply_config": ("Apply configuration", "applying…"),
    "check_availability": ("Check availability", "checking…"),
    "create_branch": ("Create branch", "creating branch…"),
    "create_timeline": ("Create first branch", "creating branch…"),
    "delete_tenant": ("Delete project", "deleting…"),
    "delete_timeline": ("Delete branch", "deleting…"),
    "move_project": ("Move project", "moving…"),
    "start_compute": ("Start endpoint", "starting…"),
    "suspend_compute": ("Suspend endpoint", "suspending…"),
    "restore_from_store": ("Restore from the store", "restoring…"),
    "upgrade_project": ("Upgrade project", "upgrading…"),
}


def operation_status(operation: Operation) -> Status:
    return OPERATION_STATUSES.get(operation.status) or _unknown(operation.status)


def delivery_status(delivery: Delivery) -> Status:
    return DELIVERY_STATUSES.get(delivery.status) or _unknown(delivery.status)


def _unknown(value: str) -> Status:
    return Status(value, value.replace("_", " ").capitalize() or "Unknown", "skip", "quiet")


def is_unfinished(operation: Operation) -> bool:
    return not operation_status(operation).terminal


def can_be_cancelled(operation: Operation) -> bool:
    """Whether to offer it; the API decides in the end."""
    is_on_its_way = operation.status == "cancelling"
    return operation.can_be_steered and is_unfinished(operation) and not is_on_its_way


def can_be_retried(operation: Operation) -> bool:
    """Whether to offer it; the API decides in the end."""
    return operation.can_be_steered and operation.status in ("failed", "cancelled")


def action_name(action: str) -> str:
    known = ACTIONS.get(action)
    return known[0] if known else action.replace("_", " ").capitalize()


def operation_name(operation: Operation) -> str:
    is_snapshot = operation.kind == "create_snapshot" and operation.action == "create_branch"
    return "Create snapshot" if is_snapshot else action_name(operation.action)


def endpoint_state(endpoint: Endpoint) -> Status:
    if endpoint.disabled:
        return STOPPED
    return ACTIVE if endpoint.current_state == "active" else IDLE


def _unfinished(endpoint: Endpoint, operations: Iterable[Operation]) -> list[Operation]:
    return [one for one in operations if one.endpoint_id == endpoint.id and is_unfinished(one)]


def pending_word(endpoint: Endpoint, operations: Iterable[Operation]) -> str:
    """Return what is being done to the endpoint now; "" if nothing is. `operations` are in the
    API's order, the newest first. The oldest unfinished one counts."""
    unfinished = _unfinished(endpoint, operations)
    if unfinished and unfinished[-1].status == "cancelling":
        return "cancelling…"
    if unfinished:
        return ACTIONS.get(unfinished[-1].action, ("", "working…"))[1]
    return {"active": "starting…", "idle": "suspending…"}.get(endpoint.pending_state, "")


# The state of the endpoint after these actions.
HEADING = {"start_compute": ACTIVE, "suspend_compute": IDLE}
# What runs the endpoint's Postgres, or ends that.
RUNNING = {*HEADING, "check_availability"}


def failed_start(endpoint: Endpoint, operations: Sequence[Operation]) -> Operation | None:
    """Return the latest attempt to run the endpoint's Postgres if that failed, nothing has worked
    since and nothing is under way: the endpoint is idle, and may not wake. `operations` are newest
    first."""
    if endpoint_state(endpoint) is not IDLE or pending_word(endpoint, operations):
        return None
    own = (one for one in operations if one.endpoint_id == endpoint.id and one.action in RUNNING)
    latest = next(own, None)
    if latest is None or latest.not_run_because:
        return None
    return latest if operation_status(latest).tone == "bad" else None


def heading_for(endpoint: Endpoint, operations: Iterable[Operation]) -> Status:
    """Return the endpoint's state after all unfinished `operations`, which are newest first."""
    own = (one.action for one in _unfinished(endpoint, operations) if one.action in HEADING)
    pending = {"active": ACTIVE, "idle": IDLE}.get(endpoint.pending_state)
    state = endpoint_state(endpoint)
    if state is STOPPED:
        return state
    return next((HEADING[action] for action in own), pending or state)


def branch_word(branch: Branch) -> str:
    """Return a word for what is being done to a branch; "" if nothing is."""
    if branch.current_state in ("ready", ""):
        return ""
    if branch.current_state == "init":
        return "creating…" if branch.pending_state else ""
    return {"resetting": "replacing data…"}.get(branch.current_state, f"{branch.current_state}…")


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
    the request and the last end, and from how long each took. Times may be exact only to the
    second, while durations are exact to the millisecond. Without pauses, both differ by at most a
    second."""
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
