"""The branches of a project: their tree as a picture and as a list, and the form for a new one."""

from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.branch_forms import BranchForm
from console.branch_list import branch_list
from console.branch_picture import describe, pictures
from console.branch_rows import branch_rows
from console.outcomes import There
from console.parts import part
from console.polling import Polling, page_and_region, polling
from console.request import ConsoleRequest
from console.responses import FormPage, back, choices, done, problems_beside, show_form
from console.rows import endpoint_row
from console.side_by_side import side_by_side

# More than the branches need: an endpoint's pending word may come from an older operation.
OPERATIONS_READ = 50


def _contents(request: ConsoleRequest, project_id: str) -> tuple[dict[str, Any], Polling]:
    api = request.api
    # Operations are read before what they change, as on the project's page.
    operations, project = side_by_side(
        lambda: api.operations(project_id, limit=OPERATIONS_READ),
        lambda: api.project(project_id),
    )
    branches, endpoints, snapshots = side_by_side(
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
        part(lambda: api.snapshots.list(project_id)),
    )
    perched = [endpoint_row(each, branches, operations.items) for each in endpoints]
    rows = branch_rows(branches, perched)
    known = {branch.id for branch in branches}
    found = branch_list(request, rows)
    query = f"?{found.listing.query}" if found.listing.query else ""
    here = reverse("branches", args=[project_id])
    context = {
        "project": project,
        "here": here,
        # The page of the list to which forms return.
        "origin": here + query,
        "listing": found.listing,
        "count": len(rows),
        "list": found,
        "branches": found.rows,
        "pictures": pictures(rows, project_id),
        "picture_words": describe(rows),
        # Snapshots of branches that are deleted. All others are on the page of their branch.
        "orphans": [one for one in snapshots.items if one.source_branch_id not in known],
    }
    url = reverse("branches_live", args=[project_id]) + query
    return context, polling(request, url, operations.items, There.of(endpoints, branches))


index, index_live = page_and_region(_contents, "branches.html", "_branches.html")


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = back(request, reverse("branches", args=[project_id]))
    form = BranchForm(request.POST or None, initial={"parent_id": request.GET.get("parent", "")})
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            branch = request.api.branching.create(project_id, form.wanted)
            page_url = reverse("branch", args=[project_id, branch.id])
            return done(request, page_url, f"Branch {branch.name} is being created.")
    form.offer_parents(choices(request, lambda: request.api.branches(project_id)))
    page = FormPage(
        title="Create a branch",
        intro="A copy of its parent's databases, roles and data as they are now.",
        submit="Create branch",
        back=url,
    )
    return show_form(request, form, page)
