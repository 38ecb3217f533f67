"""The query parameters and response fields of endpoints' metrics, and their form for Prometheus."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ninja import Field, Schema
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from controlplane.api.http.fields import PointInTime, Timestamp, told
from controlplane.models.usage import GAUGES
from controlplane.usage.endpoint_metrics import Current, in_seconds

TIME = "2026-01-31T12:00:00Z"
IDS = ("endpoint", "branch")


class Measured(Schema):
    connections_active: int | None = told("Connections that run a query or replicate", 3, None)
    connections_idle: int | None = told("Connections that wait for a query", 5, None)
    connections_idle_in_transaction: int | None = told(
        "Connections that wait within a transaction", 0, None
    )
    active_queries: int | None = told("Queries that run", 3, None)
    memory_bytes: int | None = told("Memory of the endpoint's Postgres, in bytes", 58720256, None)
    database_bytes: int | None = told("Bytes of the branch's databases", 31457280, None)
    cpu_seconds: float | None = told(
        "Seconds for which the endpoint's Postgres computed", 1.25, None
    )
    cache_hits: int | None = told("Blocks that were found in shared buffers", 20480, None)
    cache_misses: int | None = told("Blocks that were read from elsewhere", 96, None)
    rows_read: int | None = told("Rows that scans of tables and indexes returned", 40960, None)
    rows_written: int | None = told("Rows that were inserted, updated or deleted", 512, None)
    deadlocks: int | None = told("Deadlocks", 0, None)
    log_bytes: int | None = told("Bytes of write-ahead log that were written", 131072, None)


class MetricsPoint(Measured):
    """What the samples of one step add up to: of connections, queries, memory and databases the
    highest number seen, of everything else the sum."""

    at: Timestamp = told("The begin of the step", TIME)
    samples: int = told(
        "How many samples there are: one for each minute in which it ran, and 0 if it "
        "only ran between two samples",
        5,
    )
    wakes: int = told("How often its compute was started", 1)


class EndpointMetrics(Schema):
    """An endpoint's metrics. Steps in which it did not run are left out."""

    endpoint_id: str
    since: Timestamp = Field(
        serialization_alias="from",
        description="The begin, rounded down to a whole step",
        examples=[TIME],
    )
    until: Timestamp = Field(
        serialization_alias="to",
        description="The end, rounded up to a whole step, exclusive",
        examples=["2026-01-31T13:00:00Z"],
    )
    step: int = told("Seconds that one point stands for", 300)
    points: list[MetricsPoint] = Field(description="The oldest first")


class OneEndpointMetrics(Schema):
    metrics: EndpointMetrics


class CurrentMetrics(Measured):
    """An endpoint's last sample. What is counted is counted since the endpoint was first
    sampled."""

    endpoint_id: str
    branch_id: str
    active: bool = told("Whether its compute runs", True)
    sampled_at: Timestamp | None = told(
        "When the sample was taken; absent if there is none", TIME, None
    )
    wakes: int = told("How often its compute was started", 12)


class ProjectMetrics(Schema):
    endpoints: list[CurrentMetrics]


def current_out(one: Current) -> dict[str, Any]:
    return {
        "endpoint_id": one.endpoint.id,
        "branch_id": one.endpoint.branch_id,
        "active": one.is_active,
        "sampled_at": one.sampled_at,
        **in_seconds(one.values),
    }


class AsOpenMetrics:
    """The last samples of a project's endpoints, as a collector of prometheus_client."""

    def __init__(self, found: Sequence[Current]) -> None:
        self._found = found

    def text(self) -> bytes:
        return bytes(generate_latest(self))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(
            "perch_endpoint_active", "1 if the endpoint's compute runs, otherwise 0", labels=IDS
        )
        sampled = GaugeMetricFamily(
            "perch_endpoint_sampled_timestamp_seconds", "When it was last sampled", labels=IDS
        )
        connections = GaugeMetricFamily(
            "perch_endpoint_connections", "Connections to its Postgres", labels=(*IDS, "state")
        )
        for one in self._found:
            active.add_metric(_ids(one), int(one.is_active))
            if one.sampled_at is not None:
                sampled.add_metric(_ids(one), one.sampled_at.timestamp())
            for name, value in one.values.items():
                if name.startswith("connections_"):
                    connections.add_metric([*_ids(one), name.removeprefix("connections_")], value)
        yield from (active, sampled, connections)
        fields = {**Measured.model_fields, "wakes": MetricsPoint.model_fields["wakes"]}
        for name, field in fields.items():
            if not name.startswith("connections_"):
                yield self._family(name, str(field.description))

    def _family(self, name: str, meaning: str) -> Metric:
        kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
        family = kind(f"perch_endpoint_{name}", meaning, labels=IDS)
        for one in self._found:
            values = in_seconds(one.values)
            if name in values:
                family.add_metric(_ids(one), values[name])
        return family


def _ids(one: Current) -> list[str]:
    return [one.endpoint.id, one.endpoint.branch_id]


class MetricsQuery(Schema):
    since: PointInTime | None = Field(
        None,
        alias="from",
        description="The beginning, at most 14 days ago; by default an hour before `to`.",
    )
    until: PointInTime | None = Field(
        None, alias="to", description="The end, by default now. A later end means now."
    )
    step: int | None = Field(
        None,
        ge=60,
        le=86_400,
        multiple_of=60,
        description="Seconds that one point stands for, in whole minutes. By default the shortest "
        "of 1, 5 and 15 minutes, 1 and 4 hours that makes at most 400 points. The response has the "
        "step that was used: at least 5 minutes if `from` is more than two hours ago.",
    )


class CurrentMetricsQuery(Schema):
    format: Literal["json", "openmetrics"] | None = Field(
        None,
        description="By default OpenMetrics if `Accept` names `application/openmetrics-text`, as "
        "Prometheus does, otherwise JSON.",
    )
