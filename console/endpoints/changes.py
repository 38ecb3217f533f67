"""The views behind the buttons that change or delete an endpoint, some after a confirmation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from console.api.management_api import ManagementAPI
from console.api.parallel import in_parallel, part
from console.forms import losses
from console.forms.fields import ConfirmForm
from console.pages.addresses import back
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, act, choices, done, show_confirmation, show_form
from console.request import ConsoleRequest

Call = Callable[[ManagementAPI, str, str, bool], object]

# For the last part of a button's URL, the API call that the button makes. `on` is the new position
# of a switch.
CHANGES: Mapping[str, Call] = {
    "start": lambda api, project, endpoint, on: api.run_endpoint(project, endpoint, "start"),
    "enable": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"disabled": False}
    ),
    "pooling": lambda api, project, endpoint, on: api.update_endpoint(
        project, endpoint, {"pooler_enabled": on}
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
            project, endpoint, {"disabled": True}
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


@require_http_methods(["GET", "HEAD", "POST"])
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


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=endpoint_id)
    project_url = reverse("project", args=[project_id])
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_endpoint(project_id, endpoint_id)
            return done(request, project_url, f"Endpoint {endpoint_id} is deleted.")
    # A page must not ask to confirm the deletion of an endpoint that does not exist.
    lost = choices(request, lambda: _losses(request, project_id, endpoint_id))
    page = FormPage(
        title=f"Delete endpoint {endpoint_id}",
        intro="This permanently deletes:",
        submit="Delete endpoint",
        danger=True,
        back=back(request, project_url),
        losses=lost,
    )
    return show_form(request, form, page)


def _losses(request: ConsoleRequest, project_id: str, endpoint_id: str) -> list[losses.Loss]:
    """Return what is lost with the endpoint. Raises NotFound."""
    endpoint, branches = in_parallel(
        lambda: request.api.endpoint(project_id, endpoint_id),
        part(lambda: request.api.branches(project_id)),
    )
    names = {branch.id: branch.name for branch in branches.items}
    return losses.of_endpoint(endpoint, names.get(endpoint.branch_id, endpoint.branch_id))
