"""A project's settings and what it uses: their page, and the forms that change them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console import client_address
from console.api.parallel import in_parallel, part
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.forms.api_requests import body_of
from console.forms.endpoint_settings import ENDPOINT_SETTINGS, setting_rows
from console.forms.fields import RenameForm
from console.pages.listing import Order, listing
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, done, show_confirmation
from console.projects.settings_forms import (
    AddressesForm,
    DefaultsForm,
    DurabilityForm,
    HistoryForm,
    QuotasForm,
    SettingsForm,
)
from console.projects.usage import branch_usages, project_usage
from console.request import ConsoleRequest
from console.sign_in import sessions

# The settings that the page shows in words of its own.
SHOWN = frozenset(
    (
        *("quota", "allowed_ips", "enable_logical_replication", "durability"),
        *("block_public_connections", "block_outbound_connections"),
    )
)


@require_safe
def show(request: ConsoleRequest, project_id: str) -> HttpResponse:
    api = request.api
    project, branches = in_parallel(
        lambda: api.project(project_id), part(lambda: api.branches(project_id))
    )
    allowed = project.settings.get("allowed_ips")
    context = {
        "project": project,
        "allowed": allowed if isinstance(allowed, Mapping) else {},
        "others": list(_named_values(project.settings, without=SHOWN)),
        "defaults": _defaults(project),
        "usage": project_usage(project, branches.items),
        "listing": listing(
            request,
            branch_usages(branches.items),
            words=lambda used: (used[0].name,),
            orders={"used": Order("Compute time", lambda used: -(used[0].usage.compute_time or 0))},
        ),
        "here": request.path,
        "protected": [one for one in branches.items if one.protected],
        "problem": branches.problem,
    }
    return render(request, "project_settings.html", context)


def _defaults(project: Project) -> list[tuple[str, str]]:
    """Return the defaults for endpoints: the console's settings as on the page of an endpoint, and
    all others."""
    sent = project.default_endpoint_settings
    known = frozenset(one.attribute for one in ENDPOINT_SETTINGS)
    rows = setting_rows(Endpoint.read({"id": project.id, **sent}))
    return [*rows, *_named_values(sent, without=known)]


def _named_values(
    settings: Mapping[str, Any], prefix: str = "", *, without: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield each setting's name with its value in words."""
    for name, value in settings.items():
        label = f"{prefix} {name}".strip().replace("_", " ")
        if name in without:
            continue
        if isinstance(value, Mapping):
            yield from _named_values(value, label)
        elif isinstance(value, bool):
            yield label, "yes" if value else "no"
        elif isinstance(value, list):
            yield label, ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield label, str(value)


@dataclass(frozen=True)
class Change:
    """A form of the page, by the name in its address."""

    form: type[RenameForm | SettingsForm]
    title: str
    intro: str
    notice: str
    # At fault if the API names a field that the form does not have.
    field: str = ""
    submit: str = "Save"


CHANGES = {
    "rename": Change(RenameForm, "Rename project", "", "Project renamed.", "name", "Rename"),
    "history": Change(
        HistoryForm,
        "History retention",
        "Every moment of this time can become a branch, or replace a branch's data.",
        "History retention changed.",
        "retention",
    ),
    "durability": Change(
        DurabilityForm,
        "Durability",
        "What the loss of a host may cost. A change applies within seconds, without a restart.",
        "Durability changed.",
        "durability",
    ),
    "addresses": Change(
        AddressesForm,
        "Allowed addresses",
        "Postgres clients from other addresses are refused; so are Query and Tables of the "
        "console in a browser with another address. The rest of the console and the API go on.",
        "Allowed addresses changed.",
        "ips",
    ),
    "quotas": Change(
        QuotasForm,
        "Quotas",
        "When one is used up, the project's endpoints are suspended, and none starts until"
        " the next period or a higher quota.",
        "Quotas changed.",
    ),
    "defaults": Change(
        DefaultsForm,
        "Defaults for new endpoints",
        "Endpoints that exist keep their settings.",
        "Defaults changed.",
    ),
}


def change(request: ConsoleRequest, project_id: str, what: str) -> HttpResponse:
    """Show a form, or make its change; `what` is a key of CHANGES."""
    chosen, is_sent = CHANGES[what], request.method == "POST"
    url = reverse("project_settings", args=[project_id])
    page = FormPage(title=chosen.title, intro=chosen.intro, submit=chosen.submit, back=url)
    data = request.POST if is_sent else None
    form: RenameForm | SettingsForm
    if chosen.form is AddressesForm:
        at_perch = sessions.present_account(request).is_perch
        form = AddressesForm(data, own=client_address.current(), blocks_outbound=at_perch)
    else:
        form = chosen.form(data)
    project: Project | None = None
    if isinstance(form, SettingsForm):
        found = choices(request, lambda: [request.api.project(project_id)])
        project = form.project = found[0] if found else None
    elif not is_sent:
        form.initial["name"] = request.api.project(project_id).name
    is_valid = is_sent and form.is_valid()
    if isinstance(form, SettingsForm) and project is not None:
        # After the validation, which is of what was offered.
        form.fill_in(project)
    if is_valid:
        with problems_beside(form, chosen.field):
            if project is not None and not form.has_changed():
                return done(request, url, "Nothing was changed.", is_live=False)
            body = body_of(form, f"project_{what}")
            if body:
                request.api.update_project(project_id, body)
            return done(request, url, chosen.notice, is_live=False)
    return page.show(request, form)


def replication(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Turn on logical replication, for good."""
    page = FormPage(
        title="Turn on logical replication",
        intro="The project's active endpoints are suspended once. From their next start on, they"
        " write what logical replication needs. This cannot be turned off again.",
        submit="Turn on",
        danger=True,
        back=reverse("project_settings", args=[project_id]),
    )

    def turn_on() -> HttpResponse:
        request.api.update_project(
            project_id, {"project": {"settings": {"enable_logical_replication": True}}}
        )
        return done(request, page.back, "Logical replication is on.", is_live=False)

    return show_confirmation(request, lambda: page, turn_on)
