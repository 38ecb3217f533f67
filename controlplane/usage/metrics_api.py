"""`/projects/{project_id}/endpoints/{endpoint_id}/metrics` and `/projects/{project_id}/metrics`."""

from typing import Any

from django.http import HttpResponse
from ninja import Query
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.usage.endpoint_metrics import current_metrics, get_series
from controlplane.usage.metrics_fields import (
    AsOpenMetrics,
    CurrentMetricsQuery,
    MetricsQuery,
    OneEndpointMetrics,
    ProjectMetrics,
    current_out,
    series_out,
)

router = Router(tags=["endpoints"])

OPENMETRICS = "application/openmetrics-text"
EXAMPLE = (
    "# TYPE perch_endpoint_active gauge\n"
    'perch_endpoint_active{endpoint="ep-…",branch="br-…"} 1.0\n…\n# EOF\n'
)
AS_TEXT = {
    "responses": {
        200: {"content": {OPENMETRICS: {"schema": {"type": "string"}, "example": EXAMPLE}}}
    }
}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}/metrics",
    response=OneEndpointMetrics,
    summary="Get an endpoint's metrics",
    description="What the endpoint's Postgres did and used: sampled once a minute while it runs, "
    "whichever branch it is on, and kept for 14 days. What happened between a sample and the next "
    "one counts with the next one. A sample is no activity.",
)
def get_project_endpoint_metrics(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str, query: Query[MetricsQuery]
) -> dict[str, Any]:
    series = get_series(
        request.auth,
        project_id,
        endpoint_id,
        since=query.since,
        until=query.until,
        step=query.step,
    )
    return {"metrics": series_out(series)}


@router.get(
    "/projects/{project_id}/metrics",
    response=ProjectMetrics,
    summary="Get the present metrics of a project's endpoints",
    description="The last sample of each endpoint, as JSON or, for Prometheus, in the OpenMetrics "
    "text format. The request wakes no compute.",
    openapi_extra=AS_TEXT,
)
def get_project_metrics(
    request: AuthenticatedRequest, project_id: str, query: Query[CurrentMetricsQuery]
) -> HttpResponse | dict[str, Any]:
    found = current_metrics(request.auth, project_id)
    accepts = request.headers.get("Accept", "")
    if query.format == "openmetrics" or (query.format is None and OPENMETRICS in accepts):
        return HttpResponse(AsOpenMetrics(found).text(), content_type=CONTENT_TYPE_LATEST)
    return {"endpoints": [current_out(one) for one in found]}
