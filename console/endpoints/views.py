"""The page of an endpoint, and the forms to create one, reassign it, and change its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_http_methods, require_safe

from console.api.errors import APIError, Unauthorized
from console.api.fields import Page, stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import first_problem, in_parallel, part
from console.api.resources.branches import Branch
from console.api.resources.operations import Event, Operation
from console.endpoints.activity import KINDS, MAX_LOOKBACK, activity, from_events, from_operations
from console.endpoints.forms import EndpointForm, EndpointSettingsForm, ReassignForm
from console.endpoints.rows import PG_SETTING_ORDERS, PgSettingRow, endpoint_row
from console.forms.api_requests import body_of
from console.forms.fields import offer_branches
from console.operations.runs import operation_rows
from console.pages.addresses import back
from console.pages.listing import listing
from console.pages.live_regions import Polling, Shown, is_poll, page_and_region, polling
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, crumbs, done, show_form
from console.pages.statuses import is_unfinished
from console.request import ConsoleRequest

PAGE_SIZE = 200
# A server that ignores the filter lists all of the project's operations. So many pages of them are
# searched at once; the user may continue from there.
MAX_PAGES = 5
MIN_FOUND = 20


@dataclass(frozen=True)
class OwnOperations:
    # The newest first.
    items: Sequence[Operation]
    # Requests the next, older ones; "" if there are none.
    cursor: str
    # How many of the project's operations were searched; 0 if the server knows the filter.
    looked_through: int


def own_operations(
    api: ManagementAPI, project_id: str, endpoint_id: str, *, cursor: str = ""
) -> OwnOperations:
    """Return the endpoint's newest operations, from `cursor` on. This takes one call if the server
    knows the filter."""
    found: list[Operation] = []
    looked_through = 0
    for _ in range(MAX_PAGES):
        page = api.operations(project_id, limit=PAGE_SIZE, cursor=cursor, endpoint_id=endpoint_id)
        own = [operation for operation in page.items if operation.endpoint_id == endpoint_id]
        found += own
        cursor = page.cursor
        if len(own) == len(page.items) and not looked_through:
            return OwnOperations(found, cursor, 0)
        looked_through += len(page.items)
        if not cursor or len(found) >= MIN_FOUND:
            break
    return OwnOperations(found, cursor, looked_through)


MAX_SHOWN_OPERATIONS = 10
# The most that the API lists.
MAX_SESSIONS = 100
# Of a week. For a busier endpoint, the band says since when it is complete.
MAX_READ_TURNS = 1000
START = "start_compute"
MAX_SHOWN_TURNS = 25

ALL_TAKEN = "Every branch already has an endpoint. Create a branch first."


def _contents(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    api = request.api
    older = request.GET.get("older", "")
    own, project = in_parallel(
        lambda: own_operations(api, project_id, endpoint_id, cursor=older),
        lambda: api.project(project_id),
    )
    is_busy = any(map(is_unfinished, own.items))
    # While an operation is under way, the page polls often and then leaves out the history, which
    # takes long to read.
    is_with_history = not (older or (is_busy and is_poll(request)))
    endpoint, branches, events, starts = in_parallel(
        lambda: api.endpoint(project_id, endpoint_id),
        lambda: api.branches(project_id),
        part(lambda: read_turns(api, project_id, endpoint_id) if is_with_history else ()),
        # They are among its own operations, unless it has more than were read.
        part(
            lambda: _starts(api, project_id, endpoint_id) if is_with_history and own.cursor else ()
        ),
    )
    started = [*starts.items, *(one for one in own.items if one.action == START)]
    history = None
    if is_with_history and events.problem:
        history = from_operations(own.items, is_cut=bool(own.cursor))
    elif is_with_history:
        history = from_events(events.items, started, is_cut=events.is_cut)
    band = activity(endpoint, history, now=datetime.now(UTC)) if history else None
    context = {
        "project": project,
        "here": reverse("endpoint", args=[project_id, endpoint_id]),
        "row": endpoint_row(endpoint, branches, own.items),
        "endpoint": endpoint,
        "own": own.items,
        "operations": operation_rows(own.items[:MAX_SHOWN_OPERATIONS]),
        "looked_through": own.looked_through if own.cursor else 0,
        "further_back": own.cursor if own.looked_through else "",
        "is_older": bool(older),
        "more_query": "" if own.looked_through else f"?endpoint_id={endpoint_id}",
        "activity_problem": first_problem(events, starts),
        "activity": band,
        "turns": band.turns[:MAX_SHOWN_TURNS] if band else (),
    }
    return context, polling(request, own.items, urlencode({"older": older}) if older else "")


show, live = page_and_region(_contents, "endpoint.html", "_endpoint.html")


@require_safe
def sessions(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    """Show what keeps the endpoint active: a part of its page or, without scripts, a page."""
    context: dict[str, Any] = {"project_id": project_id, "endpoint_id": endpoint_id}
    context["most_sessions"] = MAX_SESSIONS
    try:
        context["sessions"], context["suspends_at"] = request.api.sessions(project_id, endpoint_id)
    except Unauthorized:
        raise
    except APIError as problem:
        context["problem"] = problem
    if request.htmx:
        return render(request, "_endpoint_sessions.html", context)
    return render(request, "endpoint_sessions.html", context | {"crumbs": crumbs(request)})


def read_turns(api: ManagementAPI, project_id: str, endpoint_id: str) -> Page[Event]:
    """Read the recent events of its wakes, suspends and failures."""
    filters = {"endpoint_id": endpoint_id, "type": ",".join(KINDS), "since": _lookback_start()}
    return api.events(project_id, limit=MAX_READ_TURNS, **filters)


def _starts(api: ManagementAPI, project_id: str, endpoint_id: str) -> Page[Operation]:
    """Read the operations that started it, for how long each took."""
    filters = {"endpoint_id": endpoint_id, "action": START, "since": _lookback_start()}
    return api.operations(project_id, limit=MAX_READ_TURNS, **filters)


def _lookback_start() -> str:
    return stamp(datetime.now(UTC) - MAX_LOOKBACK)


@require_http_methods(["GET", "HEAD", "POST"])
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
    page = FormPage(
        title="Create endpoint",
        intro="Clients connect to a branch through its endpoint. 1 CU is 1 vCPU and 4 GB of "
        "memory.",
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
            changes = body_of(form, "endpoint_reassign")["endpoint"]
            request.api.update_endpoint(project_id, endpoint_id, changes)
            return done(request, url, f"Endpoint {endpoint_id} is moving to the chosen branch.")
    free = choices(request, lambda: _free_branches(request, project_id, form))
    offer_branches(form, "branch_id", free)
    page = FormPage(
        title="Reassign endpoint",
        intro=f"{endpoint_id} keeps its host and moves to another branch. Open connections "
        "are closed; the next connection starts it on the new branch.",
        submit="Reassign",
        back=url,
        blocked="" if free or form.is_bound else ALL_TAKEN,
    )
    return show_form(request, form, page)


def _free_branches(request: ConsoleRequest, project_id: str, form: forms.Form) -> list[Branch]:
    """Return the branches without an endpoint, and the chosen one: it may have one meanwhile."""
    branches, endpoints = in_parallel(
        lambda: request.api.branches(project_id),
        lambda: request.api.endpoints(project_id),
    )
    taken = {endpoint.branch_id for endpoint in endpoints}
    chosen = form.data.get("branch_id")
    return [branch for branch in branches if branch.id not in taken or branch.id == chosen]


@require_http_methods(["GET", "HEAD", "POST"])
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
            attributes = body_of(form, "endpoint_settings", **merged).get("endpoint")
            if attributes:
                request.api.update_endpoint(project_id, endpoint_id, attributes)
            words = "Compute settings saved." if attributes else "Nothing was changed."
            return done(request, url, words)
    if request.method != "POST":
        form.fill_in(request.api.endpoint(project_id, endpoint_id))
    page = FormPage(
        title="Compute settings",
        intro=f"Some changes restart the compute of {endpoint_id} if it is active. "
        "1\N{NO-BREAK SPACE}CU is 1 vCPU and 4 GB of memory.",
        submit="Save",
        back=url,
    )
    return show_form(request, form, page)


def _pg_settings(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    offered, endpoint, project = in_parallel(
        lambda: request.api.pg_settings(project_id, endpoint_id),
        lambda: request.api.endpoint(project_id, endpoint_id),
        lambda: request.api.project(project_id),
    )
    found = listing(
        request,
        [PgSettingRow(one, endpoint.pg_settings.get(one.name, "")) for one in offered],
        words=lambda row: (row.setting.name, row.setting.description),
        orders=PG_SETTING_ORDERS,
    )
    context = {
        "project": project,
        "endpoint": endpoint,
        "here": reverse("endpoint_pg_settings", args=[project_id, endpoint_id]),
        "listing": found,
    }
    return context, Polling(found.query)


# The Postgres settings that the endpoint may have, and those that it has.
pg_settings, pg_settings_live = page_and_region(
    _pg_settings, "pg_settings.html", "_pg_settings.html"
)
