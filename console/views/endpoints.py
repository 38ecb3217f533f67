"""Compute endpoints: one's page, and everything that can be done to one."""

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console import losses
from console.api_results import Branch
from console.forms import (
    ConfirmForm,
    EndpointForm,
    EndpointSettingsForm,
    ReassignForm,
    offer_branches,
)
from console.management_api import ManagementAPI, side_by_side
from console.outcomes import There
from console.parts import part
from console.polling import Polling, polling, render_live
from console.request import ConsoleRequest
from console.responses import FormPage, act, back, choices, done, problems_beside, show_form
from console.rows import endpoint_row, operation_rows

# A server that passes over the filter lists the project's: so many are looked through.
OPERATIONS_READ = 200
OPERATIONS_SHOWN = 20

ALL_TAKEN = "Every branch has its endpoint already. Create a branch first."


@require_safe
def show(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    context, state = _contents(request, project_id, endpoint_id)
    return render(request, "endpoint.html", {**context, "polling": state})


@require_safe
def live(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    context, state = _contents(request, project_id, endpoint_id)
    return render_live(request, "_endpoint.html", context, state)


def _contents(
    request: ConsoleRequest, project_id: str, endpoint_id: str
) -> tuple[dict[str, Any], Polling]:
    api = request.api
    # Operations before what they change, as on the project's page.
    page, project = side_by_side(
        lambda: api.operations(project_id, limit=OPERATIONS_READ, endpoint_id=endpoint_id),
        lambda: api.project(project_id),
    )
    endpoint, branches = side_by_side(
        lambda: api.endpoint(project_id, endpoint_id),
        lambda: api.branches(project_id),
    )
    own = [operation for operation in page.items if operation.endpoint_id == endpoint_id]
    was_filtered = len(own) == len(page.items)
    context = {
        "project": project,
        "here": reverse("endpoint", args=[project_id, endpoint_id]),
        "row": endpoint_row(endpoint, branches, own),
        "endpoint": endpoint,
        "operations": operation_rows(own[:OPERATIONS_SHOWN], branches),
        "looked_through": OPERATIONS_READ if page.cursor and not was_filtered else 0,
        "more_query": f"?endpoint_id={endpoint_id}" if own and own[0].can_be_steered else "",
    }
    url = reverse("endpoint_live", args=[project_id, endpoint_id])
    return context, polling(request, url, own, There.of([endpoint], branches))


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = back(request, reverse("project", args=[project_id]))
    form = EndpointForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "branch_id"):
            endpoint = request.api.create_endpoint(project_id, form.attributes())
            return done(request, url, f"Endpoint {endpoint.id} is being created.")
    free = choices(request, lambda: _free_branches(request, project_id))
    form.initial["branch_id"] = request.GET.get("branch", "")
    offer_branches(form, "branch_id", free)
    page = FormPage(
        title="Create an endpoint",
        intro="Clients reach a branch through the one endpoint on it. 1 CU is 1 vCPU and 4 GB.",
        submit="Create endpoint",
        back=url,
        blocked="" if free or form.is_bound else ALL_TAKEN,
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def reassign(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    url = back(request, reverse("endpoint", args=[project_id, endpoint_id]))
    form = ReassignForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "branch_id"):
            branch_id = form.cleaned_data["branch_id"]
            request.api.update_endpoint(project_id, endpoint_id, {"branch_id": branch_id})
            return done(request, url, f"Endpoint {endpoint_id} is moving to {branch_id}.")
    free = choices(request, lambda: _free_branches(request, project_id))
    offer_branches(form, "branch_id", free)
    page = FormPage(
        title="Reassign the endpoint",
        intro=f"{endpoint_id} keeps its host and serves another branch. Open connections are "
        "dropped; the next one wakes it there.",
        submit="Reassign",
        back=url,
        blocked="" if free or form.is_bound else ALL_TAKEN,
    )
    return show_form(request, form, page)


def _free_branches(request: ConsoleRequest, project_id: str) -> list[Branch]:
    branches, endpoints = side_by_side(
        lambda: request.api.branches(project_id),
        lambda: request.api.endpoints(project_id),
    )
    taken = {endpoint.branch_id for endpoint in endpoints}
    return [branch for branch in branches if branch.id not in taken]


@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    url = back(request, reverse("endpoint", args=[project_id, endpoint_id]))
    form = EndpointSettingsForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            attributes = form.changed_attributes()
            if "pg_settings" in form.changed_data:
                present = request.api.endpoint(project_id, endpoint_id).pg_settings
                attributes["settings"] = {"pg_settings": form.changed_pg_settings(present)}
            if attributes:
                request.api.update_endpoint(project_id, endpoint_id, attributes)
            return done(request, url, "" if attributes else "Nothing was changed.")
    if request.method != "POST":
        endpoint = request.api.endpoint(project_id, endpoint_id)
        form.initial.update(EndpointSettingsForm.initial_of(endpoint))
    page = FormPage(
        title="Compute settings",
        intro="A change restarts an active compute. 1 CU is 1 vCPU and 4 GB.",
        submit="Save",
        back=url,
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=endpoint_id)
    project_url = reverse("project", args=[project_id])
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_endpoint(project_id, endpoint_id)
            return done(request, project_url, f"Endpoint {endpoint_id} is deleted.")
    # Nobody should be asked to confirm the deletion of what isn't there.
    lost = choices(request, lambda: _losses(request, project_id, endpoint_id))
    page = FormPage(
        title=f"Delete the endpoint {endpoint_id}",
        intro="It goes for good, and with it:",
        submit="Delete endpoint",
        danger=True,
        back=back(request, project_url),
        losses=lost,
    )
    return show_form(request, form, page)


def _losses(request: ConsoleRequest, project_id: str, endpoint_id: str) -> list[losses.Loss]:
    """Raises NotFound."""
    endpoint, branches = side_by_side(
        lambda: request.api.endpoint(project_id, endpoint_id),
        part(lambda: request.api.branches(project_id)),
    )
    names = {branch.id: branch.name for branch in branches.items}
    return losses.of_endpoint(endpoint, names.get(endpoint.branch_id, endpoint.branch_id))


# What a button's URL ends in → what the API is asked for; `on` is where a switch is to stand.
CHANGES: Mapping[str, Callable[[ManagementAPI, str, str, bool], object]] = {
    "start": lambda api, project, endpoint, on: api.start_endpoint(project, endpoint),
    "suspend": lambda api, project, endpoint, on: api.suspend_endpoint(project, endpoint),
    "pooling": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"pooler_enabled": on}
    ),
    "disabled": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"disabled": on}
    ),
}


@require_POST
def change(request: ConsoleRequest, project_id: str, endpoint_id: str, what: str) -> HttpResponse:
    """What one press does; `what` is one of CHANGES."""
    on = request.POST.get("to") == "on"
    return act(
        request,
        lambda: CHANGES[what](request.api, project_id, endpoint_id, on),
        otherwise=reverse("endpoint", args=[project_id, endpoint_id]),
    )
