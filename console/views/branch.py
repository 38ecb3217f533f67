"""The page of one branch."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.branch_page import read_branch
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest

CHILDREN_SHOWN = 12


@require_safe
def show(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    context, state = _contents(request, project_id, branch_id)
    return render(request, "branch.html", {**context, "polling": state})


@require_safe
def live(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    context, state = _contents(request, project_id, branch_id)
    return render_live(request, "_branch.html", context, state)


def _contents(
    request: ConsoleRequest, project_id: str, branch_id: str
) -> tuple[dict[str, Any], Polling]:
    found = read_branch(request.api, project_id, branch_id)
    context = {
        "project": found.project,
        "here": reverse("branch", args=[project_id, branch_id]),
        "found": found,
        "branch_row": found.row,
        "branch": found.row.branch,
        "children": found.children[:CHILDREN_SHOWN],
        "children_more": max(0, len(found.children) - CHILDREN_SHOWN),
        "operations_query": f"?branch_id={branch_id}" if found.can_be_steered else "",
    }
    url = reverse("branch_live", args=[project_id, branch_id])
    return context, polling(request, url, found.operations)
