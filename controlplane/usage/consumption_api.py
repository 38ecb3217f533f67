"""`/consumption` and `/consumption_history`: what an account and its projects have consumed."""

from typing import Any

from ninja import Query

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
    as_periods,
    projects_consumption,
    projects_page,
    with_metrics,
    with_totals,
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
    return projects_consumption(found)


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
    periods = consumption.account_history(request.auth, **query.as_arguments())
    framed = with_totals(query.more_totals)
    return {"periods": as_periods(request.auth, periods, framed)}


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
    found = consumption.projects_history(request.auth, **query.as_arguments())
    framed = with_totals(query.more_totals)
    return projects_page(request.auth, found, framed)


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
    found = consumption.projects_history(request.auth, **query.as_arguments())
    return projects_page(request.auth, found, with_metrics(query.metrics))
