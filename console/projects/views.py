"""A project's page, which leads a new one's owner through the first steps; and the forms that
create and delete a project."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.timezone import localtime
from django.views.decorators.http import require_POST, require_safe

from console.api.parallel import in_parallel, or_none, part
from console.api.resources.branches import Branch
from console.api.resources.operations import Operation
from console.api.resources.projects import Project, Region
from console.endpoints.rows import ENDPOINT_ORDERS, endpoint_rows
from console.forms import losses
from console.forms.api_requests import body_of
from console.forms.fields import PLAIN, ConfirmForm, OpenChoiceField, offer
from console.pages.addresses import with_query
from console.pages.listing import listing
from console.pages.live_regions import Shown, page_and_region, polling
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, act, choices, done
from console.projects.usage import project_usage
from console.request import ConsoleRequest
from console.templatetags.console_tags import period

# An endpoint's pending word may come from an operation that is far down in the list.
MAX_OPERATIONS = 50


def _contents(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    operations, project, endpoints, branches = in_parallel(
        lambda: api.operations(project_id, limit=MAX_OPERATIONS),
        lambda: api.project(project_id),
        lambda: api.endpoints(project_id),
        lambda: api.branches(project_id),
    )
    rows = endpoint_rows(endpoints, branches, operations.items)
    taken = {endpoint.branch_id for endpoint in endpoints}
    found = listing(
        request,
        rows,
        words=lambda row: (row.endpoint.id, row.branch_name, row.state.label, row.size),
        orders=ENDPOINT_ORDERS,
    )
    here = reverse("project", args=[project_id])
    context = {
        "project": project,
        "here": here,
        "back_here": with_query(here, found.query),
        "listing": found,
        "endpoints": found.rows,
        "used_up": [one for one in project_usage(project, branches) if one.is_used_up],
        # A new project has one endpoint, and its user wants to connect.
        "only_endpoint": endpoints[0] if len(endpoints) == 1 else None,
        "has_free_branch": any(branch.id not in taken for branch in branches),
        "steps": first_steps(
            project, branches, operations.items, is_all=len(operations.items) < MAX_OPERATIONS
        ),
    }
    return context, polling(request, operations.items, found.query)


show = page_and_region(_contents, "project.html", "_project.html")


# An owner of more branches than these needs no first steps.
MAX_BEGINNER_BRANCHES = 5


@dataclass(frozen=True)
class Step:
    title: str
    words: str
    is_done: bool
    # The name of the URL of the form that does it, "" if it has none.
    form: str = ""


def first_steps(
    project: Project, branches: Sequence[Branch], operations: Sequence[Operation], *, is_all: bool
) -> list[Step]:
    """Return the steps; none once all are done or the project has grown, or if what the API said is
    not enough to tell. `operations` are the project's latest ones, the newest first; `is_all` says
    if there are no others."""
    if not is_all or project.usage.transferred is None or len(branches) > MAX_BEGINNER_BRANCHES:
        return []
    steps = [
        Step("Create a project", "A new project has a branch and an endpoint.", True),
        Step(
            "Connect",
            "Take the connection string to psql, a driver or an ORM.",
            project.usage.transferred > 0,
            "project_connect",
        ),
        Step(
            "Create a branch",
            "A copy of all data in seconds, to try a migration or to test with.",
            len(branches) > 1,
            "branch_create",
        ),
        Step(
            "Let it suspend, and start again",
            "An idle endpoint is suspended. Connect again, and it starts.",
            _has_woken(operations),
        ),
    ]
    return [] if all(step.is_done for step in steps) else steps


def _has_woken(operations: Sequence[Operation]) -> bool:
    """True if an endpoint has started after it had been suspended."""
    suspended: set[str] = set()
    for operation in reversed(operations):
        if operation.status != "finished":
            continue
        if operation.action == "suspend_compute":
            suspended.add(operation.endpoint_id)
        elif operation.action == "start_compute" and operation.endpoint_id in suspended:
            return True
    return False


DEFAULT_VERSION = "The region's default"


class ProjectForm(forms.Form):
    name = forms.CharField(
        required=False,
        help_text="Leave empty to use its id.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}),
    )
    region_id = OpenChoiceField(label="Region", required=False)
    pg_version = forms.IntegerField(
        label="Postgres",
        required=False,
        widget=forms.Select(),
    )

    def offer_regions(self, regions: Iterable[Region]) -> None:
        found = list(regions)
        offer(self, "region_id", ((region.id, region.name) for region in found))
        if not found and not self.is_bound:
            del self.fields["region_id"]
        self.initial.setdefault(
            "region_id", next((region.id for region in found if region.default), "")
        )
        versions = sorted({one for region in found for one in region.pg_versions}, reverse=True)
        if len(versions) < 2 and not self.data.get("pg_version"):
            del self.fields["pg_version"]
            return
        widget = cast(forms.Select, self.fields["pg_version"].widget)
        widget.choices = [("", DEFAULT_VERSION), *((one, str(one)) for one in versions)]


def create(request: ConsoleRequest) -> HttpResponse:
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            project = request.api.create_project(body_of(form, "project_create"))
            url = reverse("project", args=[project.id])
            return done(request, url, f"Started creating project {project.name}.")
    form.offer_regions(choices(request, request.api.regions))
    return FormPage(
        title="Create project",
        intro="The project starts with one branch and a read-write endpoint.",
        back=reverse("dashboard"),
    ).show(request, form)


def delete(request: ConsoleRequest, project_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=project_id)
    if form.may_be_name:
        form.accept_name(or_none(lambda: _unique_name(request, project_id))() or "")
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            project = request.api.delete_project(project_id)
            notice = f"Project {project.name if project else project_id} is deleted."
            if project and project.recoverable_until:
                until = f"{localtime(project.recoverable_until):%Y-%m-%d %H:%M %Z}"
                notice += f" Until {until} you can recover it: see “Deleted projects”."
            return done(request, reverse("dashboard"), notice)
    # A page must not ask to confirm the deletion of a project that does not exist.
    found = choices(request, lambda: [_with_losses(request, project_id)])
    project, protected, lost, name = (
        found[0] if found else (Project.read({"id": project_id}), "", [], "")
    )
    form.accept_name(name)
    return FormPage(
        title=f"Delete project {project.name}",
        intro=f"You can recover the project for {period(project.recovery_period)}, under “Deleted "
        "projects” on the page of all projects. After that, this is gone for good:"
        if project.recovery_period
        else "This permanently deletes:",
        submit="Delete project",
        danger=True,
        back=reverse("project_settings", args=[project_id]),
        losses=lost,
        blocked="" if form.is_bound else protected,
    ).show(request, form)


@require_safe
def deleted(request: ConsoleRequest) -> HttpResponse:
    """List the deleted projects that can be recovered."""
    page = request.api.deleted_projects()
    context = {"projects": page.items, "has_more": bool(page.cursor)}
    return render(request, "deleted_projects.html", context)


@require_POST
def recover(request: ConsoleRequest, project_id: str) -> HttpResponse:
    return act(
        request,
        lambda: request.api.recover_project(project_id),
        otherwise=reverse("project", args=[project_id]),
        message="The project is recovered, with its branches, endpoints and connection strings.",
    )


def _unique_name(request: ConsoleRequest, project_id: str) -> str:
    """Return the project's name; "" if another one has it too."""
    projects = request.api.all_projects()
    names = [project.name for project in projects]
    found = [one.name for one in projects if one.id == project_id and names.count(one.name) == 1]
    return next(iter(found), "")


def _with_losses(
    request: ConsoleRequest, project_id: str
) -> tuple[Project, str, list[losses.Loss], str]:
    """Return the project, why it cannot be deleted ("" if it can), what is lost with it, and its
    name if that is unique. Raises NotFound."""
    api = request.api
    project, branches, endpoints, snapshots, name = in_parallel(
        lambda: api.project(project_id),
        part(lambda: api.branches(project_id)),
        part(lambda: api.endpoints(project_id)),
        part(lambda: api.snapshots.list(project_id)),
        or_none(lambda: _unique_name(request, project_id)),
    )
    names = ", ".join(f"{branch.name}" for branch in branches.items if branch.protected)
    protected = f"Branches are protected: {names}. Turn off protection first." if names else ""
    lost = losses.of_project(project, branches, endpoints, snapshots)
    return project, protected, lost, name or ""
