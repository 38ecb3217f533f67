"""`/consumption` and `/consumption_history`: what an account and its projects have consumed, and
`/projects/{project_id}/metrics` and that of one endpoint."""

from typing import Any

from django.http import HttpResponse
from ninja import Query
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.services.projects import check_organization
from controlplane.usage import consumption
from controlplane.usage.consumption_fields import (
    AccountHistory,
    AccountHistoryQuery,
    ProjectsConsumption,
    ProjectsConsumptionQuery,
    ProjectsHistory,
    ProjectsHistoryQuery,
    ProjectsMetrics,
    ProjectsMetricsQuery,
    projects_page,
    with_metrics,
    with_totals,
)
from controlplane.usage.endpoint_metrics import current_metrics, get_series
from controlplane.usage.metrics_fields import (
    AsOpenMetrics,
    CurrentMetricsQuery,
    MetricsQuery,
    OneEndpointMetrics,
    ProjectMetrics,
    current_out,
)

router = Router(tags=["consumption"])

PAGED = (
    "In the order of the projects' ids, in pages, including deleted projects. The request wakes no "
    "compute. Hours, days and months (UTC) without consumption are left out."
)


@router.get(
    "/consumption/projects",
    response=ProjectsConsumption,
    summary="Get each project's consumption by consumption period",
    description=PAGED,
)
def list_projects_consumption(
    request: AuthenticatedRequest, query: Query[ProjectsConsumptionQuery]
) -> dict[str, Any]:
    found = consumption.projects_by_period(
        request.auth,
        since=query.since,
        until=query.until,
        after=query.cursor,
        limit=query.limit,
    )
    return {**projects_page(found), "periods_in_response": len({one["period_id"] for one in found})}


@router.get(
    "/consumption_history/account",
    response=AccountHistory,
    summary="Get the account's consumption",
    description="The sum of all its projects, including deleted ones, the oldest period first.",
)
def get_consumption_history_per_account(
    request: AuthenticatedRequest, query: Query[AccountHistoryQuery]
) -> dict[str, Any]:
    check_organization(request.auth, query.org_id)
    framed = with_totals(query.more_totals)
    return {"periods": consumption.account_history(request.auth, framed, **query.as_arguments())}


@router.get(
    "/consumption_history/projects",
    response=ProjectsHistory,
    summary="Get each project's consumption",
    description=PAGED,
)
def get_consumption_history_per_project(
    request: AuthenticatedRequest, query: Query[ProjectsHistoryQuery]
) -> dict[str, Any]:
    check_organization(request.auth, query.org_id)
    framed = with_totals(query.more_totals)
    return projects_page(consumption.projects_history(request.auth, framed, **query.as_arguments()))


@router.get(
    "/consumption_history/v2/projects",
    response=ProjectsMetrics,
    summary="Get metrics of each project's consumption",
    description=f"{PAGED} `…_bytes_month` are bytes multiplied by hours.",
)
def get_consumption_history_per_project_v2(
    request: AuthenticatedRequest, query: Query[ProjectsMetricsQuery]
) -> dict[str, Any]:
    check_organization(request.auth, query.org_id)
    framed = with_metrics(query.metrics)
    return projects_page(consumption.projects_history(request.auth, framed, **query.as_arguments()))


metrics_router = Router(tags=["endpoints"])

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


@metrics_router.get(
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
    return {"metrics": series}


@metrics_router.get(
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
