"""The rows of the pages' tables: API results, joined and put into words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint, PgSetting
from console.api.resources.operations import Operation
from console.forms.endpoint_settings import setting_rows, size
from console.pages.listing import Order, by_time
from console.pages.statuses import (
    ACTIVE,
    STOPPED,
    Status,
    endpoint_state,
    failed_start,
    heading_for,
    pending_word,
)


@dataclass(frozen=True)
class PgSettingRow:
    setting: PgSetting
    # The endpoint's own value; "" if it does not set one.
    own: str


PG_SETTING_ORDERS: Mapping[str, Order[PgSettingRow]] = {
    "own": Order("Changed first", lambda row: (not row.own, row.setting.name)),
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
POOL = Button("endpoint_pooling", "Pool all connections", "pooling", to="on")
UNPOOL = Button("endpoint_pooling", "Pool only the -pooler host", "pooling", to="off")


@dataclass(frozen=True)
class EndpointRow:
    endpoint: Endpoint
    state: Status
    # "starting…" and the like; "" when nothing is pending.
    pending: str
    branch_name: str
    # The state that it will be in once nothing is pending.
    heading: Status
    # Why it may not wake.
    failed_start: Operation | None

    @property
    def power(self) -> Button:
        """The button beside the menu. It does not offer what has already begun."""
        return {STOPPED: ENABLE, ACTIVE: SUSPEND}.get(self.heading, START)

    @property
    def switches(self) -> list[Button]:
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
    def size(self) -> str:
        return size(self.endpoint)

    @property
    def settings(self) -> list[tuple[str, str]]:
        return setting_rows(self.endpoint)


# The orders of a list of endpoints; the first is the default.
ENDPOINT_ORDERS: Mapping[str, Order[EndpointRow]] = {
    "oldest": Order("Oldest first", lambda row: by_time(row.endpoint.created_at)),
    "newest": Order("Newest first", lambda row: by_time(row.endpoint.created_at), reverse=True),
    "state": Order("State", lambda row: (row.state.label, row.branch_name.lower())),
    "branch": Order("Branch", lambda row: row.branch_name.lower()),
    "active": Order(
        "Recently active first",
        lambda row: by_time(row.endpoint.last_active),
        reverse=True,
    ),
}


def endpoint_row(
    endpoint: Endpoint, branches: Iterable[Branch], operations: Iterable[Operation]
) -> EndpointRow:
    (row,) = endpoint_rows([endpoint], branches, operations)
    return row


def endpoint_rows(
    endpoints: Iterable[Endpoint], branches: Iterable[Branch], operations: Iterable[Operation]
) -> list[EndpointRow]:
    names = {branch.id: branch.name for branch in branches}
    operations = list(operations)
    return [
        EndpointRow(
            endpoint=endpoint,
            state=endpoint_state(endpoint),
            pending=pending_word(endpoint, operations),
            branch_name=names.get(endpoint.branch_id, endpoint.branch_id),
            heading=heading_for(endpoint, operations),
            failed_start=failed_start(endpoint, operations),
        )
        for endpoint in endpoints
    ]
