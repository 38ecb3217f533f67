"""The response fields of consumption."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Field, Schema

from controlplane import clock
from controlplane.api.http.fields import Timestamp
from controlplane.api.responses.shared import Cursor, subscription_type
from controlplane.models import Account, Consumed
from controlplane.usage.consumption import Period, ProjectHistory, ProjectPeriod, Timeframe


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
Framed = Callable[[Timeframe], dict[str, Any]]


def projects_consumption(found: Sequence[ProjectPeriod]) -> dict[str, Any]:
    now = clock.now()
    answer: dict[str, Any] = {
        "projects": [_project_period(one, now) for one in found],
        "periods_in_response": len({one.period_id for one in found}),
    }
    if found:
        answer["pagination"] = {"cursor": found[-1].project_id}
    return answer


def _project_period(one: ProjectPeriod, now: datetime) -> dict[str, Any]:
    used, frame = one.timeframe.consumed, one.timeframe
    return {
        "project_id": one.project_id,
        "period_id": one.period_id,
        "previous_period_id": one.previous_period_id,
        "period_start": frame.start,
        "period_end": frame.end,
        "data_storage_bytes_hour": int(used.byte_hours),
        "synthetic_storage_size": one.stored_bytes,
        "data_transfer_bytes": used.transferred_bytes,
        "written_data_bytes": used.written_bytes,
        "compute_time_seconds": int(used.compute_seconds),
        "active_time_seconds": int(used.active_seconds),
        "updated_at": min(now, frame.end),
    }


def projects_page(
    account: Account, projects: Sequence[ProjectHistory], framed: Framed
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "projects": [
            {"project_id": one.project_id, "periods": as_periods(account, one.periods, framed)}
            for one in projects
        ]
    }
    if projects:
        answer["pagination"] = {"cursor": projects[-1].project_id}
    return answer


def as_periods(account: Account, periods: Iterable[Period], framed: Framed) -> list[dict[str, Any]]:
    return [
        {
            "period_id": period.id,
            "period_plan": subscription_type(account),
            "period_start": period.start,
            "period_end": period.end,
            "consumption": [
                {"timeframe_start": frame.start, "timeframe_end": frame.end, **framed(frame)}
                for frame in period.timeframes
            ],
        }
        for period in periods
    ]


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
