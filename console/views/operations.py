"""Operations: a project's list of them, back to its first, and one's page with its story."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api_errors import APIError, NotFound
from console.api_operations import Operation
from console.api_results import Page
from console.filters import OperationFilters
from console.forms import new_once
from console.management_api import ManagementAPI, side_by_side
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest
from console.rows import operation_rows
from console.statuses import can_be_cancelled, can_be_retried, is_unfinished
from console.story import story

OPERATIONS_A_PAGE = 25
# More than the operations of one request, and than the retries of one operation, ever are.
CHAIN_READ = 100


@require_safe
def index(request: ConsoleRequest, project_id: str) -> HttpResponse:
    filters = OperationFilters(request.GET)
    context, state = _list(request, project_id, filters, is_whole_page=True)
    return render(request, "operations.html", {**context, "filters": filters, "polling": state})


@require_safe
def index_live(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _list(request, project_id, OperationFilters(request.GET))
    return render_live(request, "_operations_list.html", context, state)


def _list(
    request: ConsoleRequest,
    project_id: str,
    filters: OperationFilters,
    *,
    is_whole_page: bool = False,
) -> tuple[dict[str, Any], Polling]:
    api = request.api
    cursor = request.GET.get("cursor", "")
    filters.full_clean()
    page, branches, project, endpoints = side_by_side(
        lambda: api.operations(
            project_id, limit=OPERATIONS_A_PAGE, cursor=cursor, **filters.chosen
        ),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
        # For the filters alone, which stand outside of the live region.
        lambda: api.endpoints(project_id) if is_whole_page else [],
    )
    filters.offer_all(branches, endpoints)
    can_filter = _can_filter(page, filters)
    context = {
        "project": project,
        "operations": operation_rows(page.items, branches),
        "older_cursor": page.cursor,
        "is_first_page": not cursor,
        "can_filter": can_filter,
        "is_filtered": can_filter and bool(filters.chosen),
        "filter_query": filters.query,
    }
    url = reverse("operations_live", args=[project_id])
    query = filters.chosen | ({"cursor": cursor} if cursor else {})
    return context, polling(request, f"{url}?{urlencode(query)}" if query else url, page.items)


def _can_filter(page: Page[Operation], filters: OperationFilters) -> bool:
    """Whether the server does: one that passes over the filters must not seem to heed them."""
    if page.items:
        return page.items[0].can_be_steered
    return filters.is_in_use


@require_safe
def show(request: ConsoleRequest, project_id: str, operation_id: str) -> HttpResponse:
    context, state = _one(request, project_id, operation_id)
    return render(request, "operation.html", {**context, "polling": state})


@require_safe
def show_live(request: ConsoleRequest, project_id: str, operation_id: str) -> HttpResponse:
    context, state = _one(request, project_id, operation_id)
    return render_live(request, "_operation.html", context, state)


def _one(
    request: ConsoleRequest, project_id: str, operation_id: str
) -> tuple[dict[str, Any], Polling]:
    api = request.api
    operation, branches, project = side_by_side(
        lambda: api.operation(project_id, operation_id),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
    )
    if operation.project_id not in ("", project_id):
        raise NotFound("operation not found")
    chain, retries = side_by_side(
        lambda: _chain_of(api, project_id, operation),
        lambda: _retries_of(api, project_id, operation),
    )
    (row,) = operation_rows([operation], branches)
    context = {
        "project": project,
        "row": row,
        "operation": operation,
        "steps": story(operation, chain),
        "chain": operation_rows(chain, branches),
        "retries": retries,
        # What a button sends along, so that pressed twice it does no more than once.
        "once": new_once(),
        **_steering(operation, chain),
    }
    url = reverse("operation_live", args=[project_id, operation_id])
    others = [member for member in chain if member.id != operation.id]
    return context, polling(request, url, [operation, *others])


def _chain_of(api: ManagementAPI, project_id: str, operation: Operation) -> list[Operation]:
    """The operations of one request, in their order; none where they cannot be told."""
    if not operation.chain_id:
        return []
    try:
        page = api.operations(project_id, limit=CHAIN_READ, chain_id=operation.chain_id)
    except APIError:
        # What is shown of the operation itself is worth more than an error page.
        return []
    # This one as it was read: its own status and the chain's must not contradict each other.
    members = [
        operation if member.id == operation.id else member
        for member in page.items
        if member.chain_id == operation.chain_id
    ]
    return members[::-1]


def _retries_of(api: ManagementAPI, project_id: str, operation: Operation) -> list[Operation]:
    """Those that did its work anew, the latest first."""
    if not can_be_retried(operation) or operation.updated_at is None:
        return []
    since = operation.updated_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        page = api.operations(project_id, limit=CHAIN_READ, initiator="retry", since=since)
    except APIError:
        return []
    return [other for other in page.items if other.retry_of == operation.id]


def _steering(operation: Operation, chain: list[Operation]) -> dict[str, bool]:
    """What may be done, to the operation and to its whole request."""
    all_ended = not any(is_unfinished(member) for member in chain)
    is_several = len(chain) > 1
    return {
        "can_cancel": can_be_cancelled(operation),
        "can_retry": can_be_retried(operation),
        "can_cancel_chain": is_several and any(can_be_cancelled(member) for member in chain),
        "can_retry_chain": is_several and all_ended and any(map(can_be_retried, chain)),
    }
