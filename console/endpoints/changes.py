"""The forms to create an endpoint, to reassign it and to change its settings; and the views behind
the buttons that change or delete it, some after a confirmation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django import forms
from django.http import HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from console.api.management_api import ManagementAPI
from console.api.parallel import in_parallel, part
from console.api.resources.branches import Branch
from console.endpoints.forms import EndpointForm, EndpointSettingsForm, ReassignForm
from console.forms import losses
from console.forms.api_requests import body_of
from console.forms.fields import ConfirmForm, offer_branches
from console.pages.addresses import back
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, act, choices, done, show_confirmation
from console.request import ConsoleRequest

ALL_TAKEN = "Every branch already has an endpoint. Create a branch first."


def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = back(request, reverse("project", args=[project_id]))
    form = EndpointForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "branch_id"):
            endpoint = request.api.create_endpoint(project_id, body_of(form, "endpoint_create"))
            # Go to the endpoint's page, which shows how it starts and how to connect.
            url = back(request, reverse("endpoint", args=[project_id, endpoint.id]))
            return done(request, url, f"Started creating endpoint {endpoint.id}.")
    free = choices(request, lambda: _free_branches(request, project_id, form))
    form.initial["branch_id"] = request.GET.get("branch", "")
    offer_branches(form, "branch_id", free)
    return FormPage(
        title="Create endpoint",
        intro="Clients connect to a branch through its endpoint. 1 CU is 1 vCPU and 4 GB of "
        "memory.",
        back=url,
        blocked="" if free or form.is_bound else ALL_TAKEN,
    ).show(request, form)


def reassign(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    url = back(request, reverse("endpoint", args=[project_id, endpoint_id]))
    form = ReassignForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "branch_id"):
            body = body_of(form, "endpoint_reassign")
            request.api.update_endpoint(project_id, endpoint_id, body)
            return done(request, url, f"Endpoint {endpoint_id} is moving to the chosen branch.")
    free = choices(request, lambda: _free_branches(request, project_id, form))
    offer_branches(form, "branch_id", free)
    return FormPage(
        title="Reassign endpoint",
        intro=f"{endpoint_id} keeps its host and moves to another branch. Open connections "
        "are closed; the next connection starts it on the new branch.",
        submit="Reassign",
        back=url,
        blocked="" if free or form.is_bound else ALL_TAKEN,
    ).show(request, form)


def _free_branches(request: ConsoleRequest, project_id: str, form: forms.Form) -> list[Branch]:
    """Return the branches without an endpoint, and the chosen one: it may have one meanwhile."""
    branches, endpoints = in_parallel(
        lambda: request.api.branches(project_id),
        lambda: request.api.endpoints(project_id),
    )
    taken = {endpoint.branch_id for endpoint in endpoints}
    chosen = form.data.get("branch_id")
    return [branch for branch in branches if branch.id not in taken or branch.id == chosen]


def settings(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    url = back(request, reverse("endpoint", args=[project_id, endpoint_id]))
    form = EndpointSettingsForm(request.POST or None)
    # Set this before the field is used first, which fixes how it is shown.
    form.fields["pg_settings"].help_text = format_html(
        'One per line: name = value. <a href="{}" target="_blank">Available settings</a>, '
        "with units, ranges and defaults.",
        reverse("endpoint_pg_settings", args=[project_id, endpoint_id]),
    )
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            merged = {}
            if "pg_settings" in form.changed_data:
                present = request.api.endpoint(project_id, endpoint_id).pg_settings
                merged = {"pg_settings": form.changed_pg_settings(present)}
            body = body_of(form, "endpoint_settings", **merged)
            if body:
                request.api.update_endpoint(project_id, endpoint_id, body)
            words = "Compute settings saved." if body else "Nothing was changed."
            return done(request, url, words)
    if request.method != "POST":
        form.fill_in(request.api.endpoint(project_id, endpoint_id))
    return FormPage(
        title="Compute settings",
        intro=f"Some changes restart the compute of {endpoint_id} if it is active. "
        "1\N{NO-BREAK SPACE}CU is 1 vCPU and 4 GB of memory.",
        submit="Save",
        back=url,
    ).show(request, form)


Call = Callable[[ManagementAPI, str, str, bool], object]

# For the last part of a button's URL, the API call that the button makes. `on` is the new position
# of a switch.
CHANGES: Mapping[str, Call] = {
    "start": lambda api, project, endpoint, on: api.run_endpoint(project, endpoint, "start"),
    "enable": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"endpoint": {"disabled": False}}
    ),
    "pooling": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"endpoint": {"pooler_enabled": on}}
    ),
}


@dataclass(frozen=True)
class ChangeToConfirm:
    """A change that closes open connections, so the user must confirm it."""

    title: str
    # What the change does, as the words that follow the endpoint's id.
    effect: str
    submit: str
    call: Call


TO_CONFIRM: Mapping[str, ChangeToConfirm] = {
    "suspend": ChangeToConfirm(
        "Suspend endpoint",
        "will be suspended. Open connections are closed; the next connection starts it again.",
        "Suspend",
        lambda api, project, endpoint, on: api.run_endpoint(project, endpoint, "suspend"),
    ),
    "restart": ChangeToConfirm(
        "Restart endpoint",
        "will be restarted. Open connections are closed, and new connections wait until it has "
        "started.",
        "Restart",
        lambda api, project, endpoint, on: api.run_endpoint(project, endpoint, "restart"),
    ),
    "disable": ChangeToConfirm(
        "Disable endpoint",
        "will be suspended, and connections cannot start it until it is enabled again. Open "
        "connections are closed.",
        "Disable",
        lambda api, project, endpoint, on: api.update_endpoint(
            project, endpoint, {"endpoint": {"disabled": True}}
        ),
    ),
}


@require_POST
def change(request: ConsoleRequest, project_id: str, endpoint_id: str, what: str) -> HttpResponse:
    """Make a change at once; `what` is a key of CHANGES."""
    to = request.POST.get("to", "")
    return act(
        request,
        lambda: CHANGES[what](request.api, project_id, endpoint_id, to == "on"),
        otherwise=reverse("endpoint", args=[project_id, endpoint_id]),
        message=_requested(request, f"{what} {to}".strip(), endpoint_id),
    )


def _requested(request: ConsoleRequest, what: str, endpoint_id: str) -> str:
    """Return what to say without scripts. With scripts, the live region shows the change."""
    return "" if request.htmx else f"{what.capitalize()} requested for {endpoint_id}."


def confirm(request: ConsoleRequest, project_id: str, endpoint_id: str, what: str) -> HttpResponse:
    """Make a change after a confirmation; `what` is a key of TO_CONFIRM."""
    change = TO_CONFIRM[what]
    url = back(request, reverse("endpoint", args=[project_id, endpoint_id]))

    def go_ahead() -> HttpResponse:
        change.call(request.api, project_id, endpoint_id, True)
        return done(request, url, _requested(request, what, endpoint_id))

    def page() -> FormPage:
        if request.method != "POST":
            # A page must not ask to confirm a change of an endpoint that does not exist.
            request.api.endpoint(project_id, endpoint_id)
        return FormPage(
            title=change.title,
            intro=f"{endpoint_id} {change.effect}",
            submit=change.submit,
            back=url,
        )

    return show_confirmation(request, page, go_ahead)


def delete(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=endpoint_id)
    project_url = reverse("project", args=[project_id])
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_endpoint(project_id, endpoint_id)
            return done(request, project_url, f"Endpoint {endpoint_id} is deleted.")
    # A page must not ask to confirm the deletion of an endpoint that does not exist.
    lost = choices(request, lambda: _losses(request, project_id, endpoint_id))
    return FormPage(
        title=f"Delete endpoint {endpoint_id}",
        intro="This permanently deletes:",
        submit="Delete endpoint",
        danger=True,
        back=back(request, project_url),
        losses=lost,
    ).show(request, form)


def _losses(request: ConsoleRequest, project_id: str, endpoint_id: str) -> list[losses.Loss]:
    """Return what is lost with the endpoint. Raises NotFound."""
    endpoint, branches = in_parallel(
        lambda: request.api.endpoint(project_id, endpoint_id),
        part(lambda: request.api.branches(project_id)),
    )
    names = {branch.id: branch.name for branch in branches.items}
    return losses.of_endpoint(endpoint, names.get(endpoint.branch_id, endpoint.branch_id))
