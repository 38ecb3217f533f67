"""The settings of endpoints that the console shows and changes: one declaration for each.

Forms, their requests, the rows of an endpoint's page, and the words of events and errors derive
from it. The names are the API's. A setting that a server does not return is neither
shown nor offered, so that the console works with every server of the API."""

from collections.abc import Callable
from dataclasses import dataclass

from console.api.fields import number, text
from console.api.resources.endpoints import Endpoint

Value = bool | int | float


@dataclass(frozen=True, kw_only=True)
class EndpointSetting:
    # The API's name.
    attribute: str
    kind: type[bool] | type[int] | type[float]
    # Of the field in forms, and what it says below the field.
    label: str
    help: str = ""
    # In events and errors.
    words: str
    # The field's name in forms, if it is not the API's.
    alias: str = ""
    # Whether the form that changes an endpoint has it, not only the one that creates one.
    is_in_change_form: bool = True
    # The heading of the row on the endpoint's page, and what the row says: by default the value.
    # Without a heading there is no row.
    heading: str = ""
    shown: Callable[[Endpoint], str] | None = None

    @property
    def field(self) -> str:
        return self.alias or self.attribute

    def is_returned(self, endpoint: Endpoint) -> bool:
        return self.attribute in endpoint.returned

    def value(self, endpoint: Endpoint) -> Value:
        """Return the endpoint's value; false or 0 if the server returns none of this kind."""
        if self.kind is bool:
            return endpoint.returned.get(self.attribute) is True
        return self.kind(number(endpoint.returned, self.attribute))

    def typed(self, endpoint: Endpoint) -> Value | str:
        """Return the endpoint's value as a user would type it into the field."""
        value = self.value(endpoint)
        return f"{value:g}" if self.kind is float else value

    def row(self, endpoint: Endpoint) -> str:
        return self.shown(endpoint) if self.shown else str(self.typed(endpoint))


def size(endpoint: Endpoint) -> str:
    low, high = endpoint.min_cu, endpoint.max_cu
    return f"{low:g} CU" if low == high else f"{low:g} to {high:g} CU"


def _suspends_after(endpoint: Endpoint) -> str:
    seconds = int(number(endpoint.returned, "suspend_timeout_seconds"))
    if seconds < 0:
        return "Never"
    if seconds == 0:
        return "5 minutes (default)"
    whole_minutes, rest = divmod(seconds, 60)
    return f"{seconds} s" if rest else f"{whole_minutes} min"


def _pooling(endpoint: Endpoint) -> str:
    if not endpoint.pooler_enabled:
        return "Only the -pooler host"
    return f"All connections, {text(endpoint.returned, 'pooler_mode') or 'transaction'} mode"


ENDPOINT_SETTINGS = (
    EndpointSetting(
        attribute="autoscaling_limit_min_cu",
        alias="min_cu",
        kind=float,
        label="Minimum size",
        words="minimum size",
    ),
    EndpointSetting(
        attribute="autoscaling_limit_max_cu",
        alias="max_cu",
        kind=float,
        label="Maximum size",
        words="maximum size",
        heading="Compute size",
        shown=size,
    ),
    EndpointSetting(
        attribute="suspend_timeout_seconds",
        alias="suspend_timeout",
        kind=int,
        label="Suspend after",
        help="The time without activity. The next connection starts the endpoint again.",
        words="suspend timeout",
        heading="Suspend after",
        shown=_suspends_after,
    ),
    EndpointSetting(
        attribute="ignore_heartbeats",
        kind=bool,
        label="Ignore heartbeats",
        help="Idle sessions keep the endpoint active only if they read or write a table. "
        "SELECT 1 does not.",
        words="ignoring heartbeats",
        heading="Heartbeats",
        shown=lambda one: "Ignored" if one.returned.get("ignore_heartbeats") else "Keep it active",
    ),
    EndpointSetting(
        attribute="pooler_enabled",
        kind=bool,
        label="Pool all connections",
        help="By PgBouncer in transaction mode. Otherwise, only the -pooler host pools.",
        words="pooling",
        # A button of the endpoint's page switches it.
        is_in_change_form=False,
        heading="Pooling",
        shown=_pooling,
    ),
)


def setting_rows(endpoint: Endpoint) -> list[tuple[str, str]]:
    """Return the headings and the texts of the rows on the endpoint's page."""
    return [
        (one.heading, one.row(endpoint))
        for one in ENDPOINT_SETTINGS
        if one.heading and one.is_returned(endpoint)
    ]
