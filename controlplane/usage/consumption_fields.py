"""The query parameters and response fields of consumption."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from ninja import Field, Schema
from pydantic import AfterValidator

from controlplane.api.http.fields import PointInTime, Stated, Text, Timestamp, several
from controlplane.api.http.pagination import page_of
from controlplane.api.responses.shared import Cursor
from controlplane.models import Consumed
from controlplane.usage.consumption import Framed, Timeframe

MAX_PROJECTS = 100
# Storage is in bytes times hours. Some metrics are always 0: this server has no private network and
# no plan that charges for extra branches, and counts the storage of snapshots as that of their
# hidden branches.
METRICS: Mapping[str, Callable[[Consumed], float]] = {
    "compute_unit_seconds": lambda used: used.compute_seconds,
    "root_branch_bytes_month": lambda used: used.root_byte_hours,
    "child_branch_bytes_month": lambda used: used.child_byte_hours,
    "instant_restore_bytes_month": lambda used: used.history_byte_hours,
    "public_network_transfer_bytes": lambda used: used.transferred_bytes,
    "private_network_transfer_bytes": lambda used: 0,
    "extra_branches_month": lambda used: 0,
    "snapshot_storage_bytes_month": lambda used: 0,
}
# Of the first version. The latter are only returned if a request asks for them.
TOTALS = (
    *("active_time_seconds", "compute_time_seconds", "written_data_bytes"),
    "synthetic_storage_size_bytes",
)
MORE_TOTALS = ("data_storage_bytes_hour", "logical_size_bytes", "logical_size_bytes_hour")


def _separated(values: list[str]) -> list[str]:
    """Split the values at commas. A list may be sent as one value with commas, as several values,
    or both. Raises ValueError for too many."""
    parts = [part for value in values for part in value.split(",") if part]
    if len(parts) > MAX_PROJECTS:
        raise ValueError(f"at most {MAX_PROJECTS} are allowed")
    return parts


def _some_of(names: Sequence[str]) -> Callable[[list[str]], list[str]]:
    def known(values: list[str]) -> list[str]:
        if not values:
            raise ValueError(f"at least one is needed, of {', '.join(names)}")
        for value in values:
            if value not in names:
                raise ValueError(f'no such metric: "{value}"; use {", ".join(names)}')
        return list(dict.fromkeys(values))

    return known


Several = Annotated[list[Text], AfterValidator(_separated), Stated(maxItems=MAX_PROJECTS)]
Metrics = Annotated[
    list[Annotated[Text, Stated(pattern=f"^{several(METRICS)}$")]],
    AfterValidator(_separated),
    AfterValidator(_some_of(tuple(METRICS))),
    Stated(minItems=1, maxItems=MAX_PROJECTS),
]
Totals = Annotated[
    list[Annotated[Text, Stated(pattern=f"^{several((*TOTALS, *MORE_TOTALS))}$")]],
    AfterValidator(_separated),
    AfterValidator(_some_of((*TOTALS, *MORE_TOTALS))),
    Stated(minItems=1, maxItems=MAX_PROJECTS),
]


class ProjectsConsumptionQuery(Schema):
    cursor: Text | None = Field(None, description="The cursor of the previous page.")
    limit: int = Field(10, ge=1, le=1000, description="The maximum number of projects.")
    since: PointInTime | None = Field(
        None, alias="from", description="A time in the first consumption period; by default now."
    )
    until: PointInTime | None = Field(
        None, alias="to", description="A time in the last consumption period; by default now."
    )


class HistoryQuery(Schema):
    since: PointInTime = Field(
        alias="from", description="The beginning, rounded down to the granularity."
    )
    until: PointInTime = Field(alias="to", description="The end, rounded up to the granularity.")
    granularity: Literal["hourly", "daily", "monthly"] = Field(
        description="`hourly` reaches back 168 hours, `daily` 60 days and `monthly` a year."
    )
    org_id: Text | None = Field(None, description="The account's organization.")

    def as_arguments(self) -> dict[str, Any]:
        """The query as the keyword arguments of `usage.consumption`."""
        return {
            "since": self.since,
            "until": self.until,
            "granularity": self.granularity,
        }


class AccountHistoryQuery(HistoryQuery):
    include_v1_metrics: bool = Field(
        False, description="Whether to include `data_storage_bytes_hour` and `logical_size_bytes*`."
    )
    metrics: Totals = Field(
        default_factory=list,
        description=f"Separated by commas or repeated: which of {', '.join(MORE_TOTALS)} to "
        f"include beside {', '.join(TOTALS)}; `include_v1_metrics` is then ignored.",
    )

    @property
    def more_totals(self) -> Sequence[str]:
        """Those of MORE_TOTALS that are to be returned."""
        if self.metrics:
            return [name for name in MORE_TOTALS if name in self.metrics]
        return MORE_TOTALS if self.include_v1_metrics else ()


class ProjectsPageQuery(HistoryQuery):
    cursor: Text | None = Field(None, description="The cursor of the previous page.")
    limit: int = Field(10, ge=1, le=100, description="The maximum number of projects.")
    project_ids: Several = Field(
        default_factory=list,
        description=f"At most {MAX_PROJECTS}, separated by commas or repeated; by default all.",
    )

    def as_arguments(self) -> dict[str, Any]:
        page = {"after": self.cursor, "limit": self.limit, "only": self.project_ids}
        return {**super().as_arguments(), **page}


class ProjectsHistoryQuery(ProjectsPageQuery, AccountHistoryQuery):
    pass


class ProjectsMetricsQuery(ProjectsPageQuery):
    metrics: Metrics = Field(
        description="Separated by commas or repeated: " + ", ".join(METRICS) + "."
    )


class ProjectConsumption(Schema):
    """What a project consumed in one consumption period, which is a calendar month in UTC."""

    project_id: str
    period_id: UUID
    previous_period_id: UUID
    period_start: Timestamp
    period_end: Timestamp
    data_storage_bytes_hour: int
    synthetic_storage_size: int
    data_transfer_bytes: int
    written_data_bytes: int
    compute_time_seconds: int
    active_time_seconds: int
    updated_at: Timestamp


class ProjectsConsumption(Schema):
    projects: list[ProjectConsumption]
    periods_in_response: int
    pagination: Cursor | None = None


class Frame(Schema):
    """What was consumed in an hour, a day or a month. Lists omit those without any consumption."""

    timeframe_start: Timestamp
    timeframe_end: Timestamp
    active_time_seconds: int
    compute_time_seconds: int
    written_data_bytes: int
    synthetic_storage_size_bytes: int
    data_storage_bytes_hour: int | None = Field(None, description="Only if asked for.")
    logical_size_bytes: int | None = Field(None, description="Only if asked for.")
    logical_size_bytes_hour: int | None = Field(None, description="Only if asked for.")


class Metric(Schema):
    metric_name: str
    value: int


class MetricsFrame(Schema):
    timeframe_start: Timestamp
    timeframe_end: Timestamp
    metrics: list[Metric]


class AnyPeriod(Schema):
    period_id: UUID
    period_plan: str
    period_start: Timestamp
    period_end: Timestamp | None = Field(
        None, description="When the period ended; absent for the current period."
    )


class HistoryPeriod(AnyPeriod):
    consumption: list[Frame]


class MetricsPeriod(AnyPeriod):
    consumption: list[MetricsFrame]


class AccountHistory(Schema):
    periods: list[HistoryPeriod]


class OneProjectHistory(AccountHistory):
    project_id: str


class ProjectsHistory(Schema):
    projects: list[OneProjectHistory]
    pagination: Cursor | None = None


class OneProjectMetrics(Schema):
    project_id: str
    periods: list[MetricsPeriod]


class ProjectsMetrics(Schema):
    projects: list[OneProjectMetrics]
    pagination: Cursor | None = None


def projects_page(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return page_of("projects", found, lambda last: last["project_id"])


def with_totals(more: Sequence[str]) -> Framed:
    """The totals that are always returned, and `more`."""

    def framed(frame: Timeframe) -> dict[str, Any]:
        used = frame.consumed
        totals = {
            "active_time_seconds": int(used.active_seconds),
            "compute_time_seconds": int(used.compute_seconds),
            "written_data_bytes": used.written_bytes,
            "synthetic_storage_size_bytes": frame.average_bytes,
        }
        others = {
            "data_storage_bytes_hour": int(used.byte_hours),
            "logical_size_bytes": frame.average_data_bytes,
            "logical_size_bytes_hour": int(used.data_byte_hours),
        }
        return totals | {name: others[name] for name in more}

    return framed


def with_metrics(names: Iterable[str]) -> Framed:
    def framed(frame: Timeframe) -> dict[str, Any]:
        values = {name: int(METRICS[name](frame.consumed)) for name in names}
        return {
            "metrics": [{"metric_name": name, "value": value} for name, value in values.items()]
        }

    return framed
