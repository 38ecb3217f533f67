"""The rows of the pages' tables: API results, joined and put into words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.urls import NoReverseMatch, reverse

from console.api_operations import Operation
from console.api_pg_settings import PgSetting
from console.api_results import Branch, Endpoint
from console.listing import Order
from console.outcomes import shown_status
from console.statuses import (
    ACTIVE,
    STOPPED,
    Status,
    action_name,
    endpoint_state,
    heading_for,
    is_unfinished,
    pending_word,
)


@dataclass(frozen=True)
class PgSettingRow:
    setting: PgSetting
    # The endpoint's own value; "" if it does not set one.
    own: str


PG_SETTING_ORDERS: Mapping[str, Order[PgSettingRow]] = {
    "own": Order("Set here first", lambda row: (not row.own, row.setting.name)),
    "name": Order("Name", lambda row: row.setting.name),
}


@dataclass(frozen=True)
class Button:
    """A button that changes an endpoint: the URL that it posts to, and its label."""

    url_name: str
    label: str
    # The button's id on the page is this name with the endpoint's id after it.
    name: str
    # For a URL that switches something: "on" or "off".
    to: str = ""
    look: str = ""
    # Whether the user is asked to confirm first.
    asks: bool = False


START = Button("endpoint_start", "Start", "power", look="small outline")
SUSPEND = Button("endpoint_suspend", "Suspend", "power", "", "small secondary outline", asks=True)
ENABLE = Button("endpoint_enable", "Enable", "power", look="small outline")
RESTART = Button("endpoint_restart", "Restart", "restart", asks=True)
DISABLE = Button("endpoint_disable", "Disable", "disable", asks=True)
POOL = Button("endpoint_pooling", "Switch pooling on", "pooling", to="on")
UNPOOL = Button("endpoint_pooling", "Switch pooling off", "pooling", to="off")


@dataclass(frozen=True)
class EndpointRow:
    endpoint: Endpoint
    state: Status
    # "starting…" and the like; "" when nothing is pending.
    pending: str
    branch_name: str
    # The state that it will be in once nothing is pending.
    heading: Status

    @property
    def power(self) -> Button:
        """The button beside the menu. It does not offer what has already begun."""
        return {STOPPED: ENABLE, ACTIVE: SUSPEND}.get(self.heading, START)

    @property
    def switches(self) -> list[Button]:
        """The buttons in the menu."""
        pooling = UNPOOL if self.endpoint.pooler_enabled else POOL
        if self.state is STOPPED:
            return [pooling]
        return [RESTART, pooling, DISABLE] if self.state is ACTIVE else [pooling, DISABLE]

    @property
    def since(self) -> datetime | None:
        """Since when it has been in its state; None if the server does not say."""
        if self.state is STOPPED:
            return None
        is_active = self.state is ACTIVE
        return self.endpoint.started_at if is_active else self.endpoint.suspended_at

    @property
    def pooling(self) -> str:
        if self.endpoint.pooler_enabled:
            return f"On, {self.endpoint.pooler_mode or 'transaction'} mode"
        return "Off"

    @property
    def size(self) -> str:
        low, high = self.endpoint.min_cu, self.endpoint.max_cu
        return f"{low:g} CU" if low == high else f"{low:g} to {high:g} CU"

    @property
    def suspends_after(self) -> str:
        seconds = self.endpoint.suspend_timeout_seconds
        if seconds < 0:
            return "Never"
        if seconds == 0:
            return "5 minutes (default)"
        whole_minutes, rest = divmod(seconds, 60)
        return f"{seconds} s" if rest else f"{whole_minutes} min"


# The orders of a list of endpoints; the first is the default.
ENDPOINT_ORDERS: Mapping[str, Order[EndpointRow]] = {
    "oldest": Order("Oldest first", lambda row: _made(row.endpoint)),
    "newest": Order("Newest first", lambda row: _made(row.endpoint), reverse=True),
    "state": Order("State", lambda row: (row.state.label, row.branch_name.lower())),
    "branch": Order("Branch", lambda row: row.branch_name.lower()),
    "active": Order(
        "Lately active first",
        lambda row: row.endpoint.last_active or datetime.min.replace(tzinfo=UTC),
        reverse=True,
    ),
}


def _made(endpoint: Endpoint) -> datetime:
    return endpoint.created_at or datetime.min.replace(tzinfo=UTC)


def endpoint_row(
    endpoint: Endpoint, branches: Iterable[Branch], operations: Iterable[Operation]
) -> EndpointRow:
    names = {branch.id: branch.name for branch in branches}
    operations = list(operations)
    return EndpointRow(
        endpoint=endpoint,
        state=endpoint_state(endpoint),
        pending=pending_word(endpoint, operations),
        branch_name=names.get(endpoint.branch_id, endpoint.branch_id),
        heading=heading_for(endpoint, operations),
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
    operations: Iterable[Operation], branches: Iterable[Branch] = ()
) -> list[OperationRow]:
    names = {branch.id: branch.name for branch in branches}
    return [
        OperationRow(
            operation=operation,
            name=action_name(operation.action),
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
    if operation.created_at is None or end is None:
        return None
    return max(0, int((end - operation.created_at).total_seconds() * 1000))


def url_or_none(name: str, *ids: str) -> str:
    """Return the page's address; "" if an id, of a server that makes other ids, cannot be in it."""
    try:
        return reverse(name, args=ids)
    except NoReverseMatch:
        return ""
