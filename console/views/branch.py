"""The page of one branch."""

from typing import Any

from django.urls import reverse

from console.branch_page import read_branch
from console.polling import Polling, page_and_region, polling
from console.request import ConsoleRequest

CHILDREN_SHOWN = 12


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


show, live = page_and_region(_contents, "branch.html", "_branch.html")
