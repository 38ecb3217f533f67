"""Branches: a project's list of them; creating, renaming, making one the default, deleting."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.forms import BranchForm, ConfirmForm, RenameForm
from console.management_api import side_by_side
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest
from console.responses import FormPage, act, choices, done, problems_beside, show_form
from console.rows import branch_rows, endpoint_row

# An endpoint's pending word may come from an operation far down.
OPERATIONS_READ = 50


@require_safe
def index(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _contents(request, project_id)
    return render(request, "branches.html", {**context, "polling": state})


@require_safe
def index_live(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _contents(request, project_id)
    return render_live(request, "_branches.html", context, state)


def _contents(request: ConsoleRequest, project_id: str) -> tuple[dict[str, Any], Polling]:
    api = request.api
    # Operations before what they change, as on the project's page.
    operations, project = side_by_side(
        lambda: api.operations(project_id, limit=OPERATIONS_READ),
        lambda: api.project(project_id),
    )
    endpoints, branches = side_by_side(
        lambda: api.endpoints(project_id),
        lambda: api.branches(project_id),
    )
    perched = [endpoint_row(each, branches, operations.items) for each in endpoints]
    context = {"project": project, "branches": branch_rows(branches, perched)}
    url = reverse("branches_live", args=[project_id])
    return context, polling(request, url, operations.items)


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = reverse("branches", args=[project_id])
    form = BranchForm(request.POST or None, initial={"parent_id": request.GET.get("parent", "")})
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            branch = request.api.create_branch(project_id, **form.cleaned_data)
            return done(request, url, f"Branch {branch.name} is being created.")
    form.offer_parents(choices(request, lambda: request.api.branches(project_id)))
    page = FormPage(
        title="Create a branch",
        intro="A copy of its parent's databases, roles and data as they are now.",
        submit="Create branch",
        back=url,
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def rename(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branches", args=[project_id])
    form = RenameForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            request.api.rename_branch(project_id, branch_id, form.cleaned_data["name"])
            return done(request, url, "The branch is renamed.")
    if request.method != "POST":
        form.initial["name"] = request.api.branch(project_id, branch_id).name
    page = FormPage(title="Rename the branch", submit="Rename", back=url)
    return show_form(request, form, page)


@require_POST
def set_default(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    return act(
        request,
        lambda: request.api.set_default_branch(project_id, branch_id),
        otherwise=reverse("branches", args=[project_id]),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branches", args=[project_id])
    form = ConfirmForm(request.POST or None, expected=branch_id)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_branch(project_id, branch_id)
            return done(request, url, f"Branch {branch_id} is being deleted.")
    if request.method != "POST":
        # Nobody should be asked to confirm the deletion of what isn't there.
        request.api.branch(project_id, branch_id)
    page = FormPage(
        title="Delete the branch",
        intro="Its databases and the endpoint on it go with it, for good.",
        submit="Delete branch",
        danger=True,
        back=url,
    )
    return show_form(request, form, page)
