"""The query parameters of endpoints' metrics."""

from typing import Literal

from ninja import Field, Schema

from controlplane.api.fields import PointInTime


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
