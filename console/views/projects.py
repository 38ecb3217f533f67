"""Projects: the dashboard that lists them, one's endpoints and settings, and creating, renaming,
deleting one."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from console import losses
from console.api_results import Page, Project
from console.forms import ConfirmForm, ProjectForm, RenameForm
from console.management_api import each_or_none, side_by_side
from console.outcomes import There
from console.parts import part
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest
from console.responses import FormPage, choices, done, problems_beside, show_form
from console.rows import endpoint_row, project_row

PROJECTS_A_PAGE = 20
# An endpoint's pending word may come from an operation far down.
OPERATIONS_READ = 50


@require_safe
def dashboard(request: ConsoleRequest) -> HttpResponse:
    cursor = request.GET.get("cursor", "")
    page: Page[Project] = request.api.projects(limit=PROJECTS_A_PAGE, cursor=cursor)
    endpoints = each_or_none(lambda project: request.api.endpoints(project.id), page.items)
    context = {
        "rows": [project_row(*pair) for pair in zip(page.items, endpoints, strict=True)],
        "next_cursor": page.cursor,
        "is_first_page": not cursor,
    }
    return render(request, "dashboard.html", context)


@require_safe
def show(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _contents(request, project_id)
    return render(request, "project.html", {**context, "polling": state})


@require_safe
def live(request: ConsoleRequest, project_id: str) -> HttpResponse:
    context, state = _contents(request, project_id)
    return render_live(request, "_project.html", context, state)


def _contents(request: ConsoleRequest, project_id: str) -> tuple[dict[str, Any], Polling]:
    api = request.api
    # Operations before what they change: read the other way round, the last poll could show a
    # finished operation beside the state from before it.
    operations, project = side_by_side(
        lambda: api.operations(project_id, limit=OPERATIONS_READ),
        lambda: api.project(project_id),
    )
    endpoints, branches = side_by_side(
        lambda: api.endpoints(project_id),
        lambda: api.branches(project_id),
    )
    endpoint_rows = [endpoint_row(each, branches, operations.items) for each in endpoints]
    taken = {endpoint.branch_id for endpoint in endpoints}
    context = {
        "project": project,
        "here": reverse("project", args=[project_id]),
        "endpoints": endpoint_rows,
        "has_free_branch": any(branch.id not in taken for branch in branches),
    }
    url = reverse("project_live", args=[project_id])
    return context, polling(request, url, operations.items, There.of(endpoints, branches))


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest) -> HttpResponse:
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            project = request.api.create_project(
                name=form.cleaned_data["name"], region_id=form.cleaned_data["region_id"]
            )
            url = reverse("project", args=[project.id])
            return done(request, url, f"Project {project.name} is being created.")
    form.offer_regions(choices(request, request.api.regions))
    page = FormPage(
        title="Create a project",
        intro="It begins with one branch and a read-write endpoint on it.",
        submit="Create project",
        back=reverse("dashboard"),
    )
    return show_form(request, form, page)


@require_safe
def settings(request: ConsoleRequest, project_id: str) -> HttpResponse:
    project = request.api.project(project_id)
    return render(request, "project_settings.html", {"project": project})


@require_http_methods(["GET", "HEAD", "POST"])
def rename(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = reverse("project_settings", args=[project_id])
    form = RenameForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            request.api.rename_project(project_id, form.cleaned_data["name"])
            return done(request, url, "The project is renamed.", is_live=False)
    if request.method != "POST":
        form.initial["name"] = request.api.project(project_id).name
    page = FormPage(title="Rename the project", submit="Rename", back=url)
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=project_id)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_project(project_id)
            return done(request, reverse("dashboard"), f"Project {project_id} is deleted.")
    # Nobody should be asked to confirm the deletion of what isn't there.
    found = choices(request, lambda: [_with_losses(request, project_id)])
    name, lost = found[0] if found else (project_id, [])
    page = FormPage(
        title=f"Delete the project {name}",
        intro="It goes, and with it:",
        submit="Delete project",
        danger=True,
        back=reverse("project_settings", args=[project_id]),
        losses=lost,
    )
    return show_form(request, form, page)


def _with_losses(request: ConsoleRequest, project_id: str) -> tuple[str, list[losses.Loss]]:
    """The project's name, and what goes with it. Raises NotFound."""
    api = request.api
    project, branches, endpoints, snapshots = side_by_side(
        lambda: api.project(project_id),
        part(lambda: api.branches(project_id)),
        part(lambda: api.endpoints(project_id)),
        part(lambda: api.snapshots.list(project_id)),
    )
    return project.name, losses.of_project(branches, endpoints, snapshots)
