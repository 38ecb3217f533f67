"""What the pages' tables show, row by row: API results joined and put into words."""

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
    # "" where the endpoint does not set it.
    own: str


PG_SETTING_ORDERS: Mapping[str, Order[PgSettingRow]] = {
    "own": Order("Set here first", lambda row: (not row.own, row.setting.name)),
    "name": Order("Name", lambda row: row.setting.name),
}


@dataclass(frozen=True)
class Button:
    """One press that changes an endpoint: which URL it posts to, and what it says."""

    url_name: str
    label: str
    # With the endpoint's id after it, the button's id on the page.
    name: str
    # Where the URL switches something: "on" or "off".
    to: str = ""
    look: str = ""
    # Whether it is asked for once more before it is done.
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
    # The state it is in once nothing is pending any more.
    heading: Status

    @property
    def power(self) -> Button:
        """The one button beside the menu: what is begun already is not offered again."""
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
        """Since when it is in its state, where the server tells."""
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


# Of what is in its list, the order; the first is the usual one.
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
    # Milliseconds; of an unfinished operation so far. None where nobody knows.
    duration_ms: int | None

    @property
    def is_unfinished(self) -> bool:
        return not self.status.terminal

    @property
    def went_wrong(self) -> bool:
        """Whether its error tells of a failure, be it of an attempt, and not of its cancelling."""
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
        # The two machines' clocks may differ; never show a time before the beginning.
        end: datetime | None = datetime.now(UTC)
    elif operation.total_duration_ms is not None:
        return operation.total_duration_ms
    else:
        end = operation.updated_at
    if operation.created_at is None or end is None:
        return None
    return max(0, int((end - operation.created_at).total_seconds() * 1000))


def url_or_none(name: str, *ids: str) -> str:
    """ "" where no page of ours can have such an id: that of a server that makes them otherwise."""
    try:
        return reverse(name, args=ids)
    except NoReverseMatch:
        return ""
