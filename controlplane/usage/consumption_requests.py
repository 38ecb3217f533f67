"""The query parameters of consumption."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import AfterValidator

from controlplane.api.http.fields import PointInTime, Stated, Text, several

MAX_PROJECTS = 100
METRICS = (
    "compute_unit_seconds",
    "root_branch_bytes_month",
    "child_branch_bytes_month",
    "instant_restore_bytes_month",
    "public_network_transfer_bytes",
    "private_network_transfer_bytes",
    "extra_branches_month",
    "snapshot_storage_bytes_month",
)
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
    AfterValidator(_some_of(METRICS)),
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
