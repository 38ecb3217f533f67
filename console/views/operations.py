"""Operations: a project's list of them, back to its first, and one's page."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api_errors import NotFound
from console.management_api import side_by_side
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest
from console.rows import operation_rows

OPERATIONS_A_PAGE = 25


@require_safe
def index(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _list(request, project_id)
    return render(request, "operations.html", {**context, "polling": state})


@require_safe
def index_live(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _list(request, project_id)
    return render_live(request, "_operations_list.html", context, state)


def _list(request: ConsoleRequest, project_id: str) -> tuple[dict[str, Any], Polling]:
    api = request.api
    cursor = request.GET.get("cursor", "")
    page, branches, project = side_by_side(
        lambda: api.operations(project_id, limit=OPERATIONS_A_PAGE, cursor=cursor),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
    )
    context = {
        "project": project,
        "operations": operation_rows(page.items, branches),
        "older_cursor": page.cursor,
        "is_first_page": not cursor,
    }
    url = reverse("operations_live", args=[project_id])
    if cursor:
        url = f"{url}?{urlencode({'cursor': cursor})}"
    return context, polling(request, url, page.items)


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
    (row,) = operation_rows([operation], branches)
    context = {"project": project, "row": row, "operation": operation}
    url = reverse("operation_live", args=[project_id, operation_id])
    return context, polling(request, url, [operation])
