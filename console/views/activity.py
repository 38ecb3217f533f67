"""Activity: who did what, in one project or in the whole account."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api_events import Event
from console.api_results import Page
from console.event_rows import days
from console.filters import EventFilters
from console.management_api import side_by_side
from console.request import ConsoleRequest

EVENTS_A_PAGE = 50


@require_safe
def of_account(request: ConsoleRequest) -> HttpResponse:
    filters = _filters(request)
    page = _page(request, filters)
    return render(request, "activity.html", _context(request, filters, page, with_project=True))


@require_safe
def of_project(request: ConsoleRequest, project_id: str) -> HttpResponse:
    filters = _filters(request)
    # The project first: where there is none, that is the error to tell.
    project, page = side_by_side(
        lambda: request.api.project(project_id),
        lambda: _page(request, filters, project_id),
    )
    context = _context(request, filters, page, with_project=False)
    return render(request, "activity.html", {**context, "project": project})


def _filters(request: ConsoleRequest) -> EventFilters:
    filters = EventFilters(request.GET)
    filters.full_clean()
    filters.offer_all()
    return filters


def _page(request: ConsoleRequest, filters: EventFilters, project_id: str = "") -> Page[Event]:
    return request.api.events(
        project_id,
        limit=EVENTS_A_PAGE,
        cursor=request.GET.get("cursor", ""),
        **filters.chosen,
    )


def _context(
    request: ConsoleRequest, filters: EventFilters, page: Page[Event], *, with_project: bool
) -> dict[str, Any]:
    return {
        "filters": filters,
        "days": days(page.items, with_project=with_project),
        "older_cursor": page.cursor,
        "is_first_page": not request.GET.get("cursor"),
        "is_filtered": bool(filters.chosen),
        "filter_query": filters.query,
    }
