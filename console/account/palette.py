"""The palette, a searchable list of pages, projects, endpoints, branches and actions; and the list
of shortcuts. Each is a page of its own, and a dialog if scripts run."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.errors import APIError
from console.api.parallel import each_or_none, in_parallel
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.pages.responses import show_dialog
from console.request import ConsoleRequest, public
from console.sign_in.sessions import Account, present_account

GROUPS = {
    "Anywhere": [
        (("Ctrl", "K"), "Open the command palette"),
        (("?",), "Show keyboard shortcuts"),
        (("/",), "Go to search or filter"),
        (("Esc",), "Close dialog or menu"),
        (("g", "p"), "Projects"),
        (("g", "a"), "Activity"),
        (("g", "w"), "Webhooks"),
        (("g", "k"), "API keys"),
        (("g", "h"), "Service status (operators)"),
        (("g", "l"), "Preferences"),
    ],
    "In a project": [
        (("g", "e"), "Endpoints"),
        (("g", "b"), "Branches"),
        (("g", "o"), "Operations"),
        (("g", "v"), "Activity"),
        (("g", "q"), "Query"),
        (("g", "t"), "Tables"),
        (("g", "s"), "Settings"),
    ],
    "On the query page": [(("Ctrl", "Enter"), "Run query")],
}

PROJECT_PATH = re.compile(r"/projects/([a-z0-9-]+)(?:/|$)")
BRANCH_PATH = re.compile(r"/branches/([a-z0-9-]+)(?:/|$)")
# Of the account's other projects, so many are searched for branches and endpoints.
MAX_SEARCHED_PROJECTS = 10
# By these, people look for the page of past moments.
PAST_WORDS = "restore undo recover history past point in time"


@dataclass(frozen=True)
class Goal:
    label: str
    url: str
    kind: str
    # Other words by which it is found.
    detail: str = ""
    # The name of its project, if that is not the open one.
    where: str = ""

    def answers(self, words: list[str]) -> bool:
        text = f"{self.label} {self.kind} {self.detail} {self.where}".lower()
        return all(word in text for word in words)

    def rank(self, query: str) -> int:
        """Order what answers a query: what is called exactly so, then what begins so, then the
        rest. The browser does the same (`static/palette/palette.js`)."""
        label = self.label.lower()
        return 0 if query in (label, self.detail.lower()) else 1 if label.startswith(query) else 2


@require_safe
def go(request: ConsoleRequest) -> HttpResponse:
    query = request.GET.get("q", "")
    open_project = PROJECT_PATH.match(_current_path(request))
    here = request.GET.get("project") or (open_project[1] if open_project else "")
    account = present_account(request)
    only_elsewhere = bool(request.htmx) and "elsewhere" in request.GET
    projects, of_project = in_parallel(
        request.api.all_projects, lambda: [] if only_elsewhere else list(_here(request, here))
    )
    others = [project for project in projects if project.id != here][:MAX_SEARCHED_PROJECTS]
    if only_elsewhere:
        return render(request, "_palette_goals.html", {"goals": _elsewhere(request, others)})
    goals = [
        *of_project,
        *_pages(account),
        *(Goal(one.name, reverse("project", args=[one.id]), "project", one.id) for one in projects),
        *_of_console(account),
    ]
    if query:
        goals += _elsewhere(request, others)
    wanted = " ".join(query.lower().split())
    found = [goal for goal in goals if goal.answers(wanted.split())]
    context = {
        "goals": sorted(found, key=lambda goal: goal.rank(wanted)) if wanted else found,
        "asked": query,
        "project_id": here,
        # They are read once somebody types, as that takes two calls for each project.
        "has_more": others and not query,
    }
    return show_dialog(request, "_palette.html", context, title="Go to")


@public
@require_safe
def shortcuts(request: ConsoleRequest) -> HttpResponse:
    return show_dialog(request, "_shortcuts.html", {"groups": GROUPS.items()}, title="Shortcuts")


def _pages(account: Account) -> Iterator[Goal]:
    yield Goal("Projects", reverse("dashboard"), "page")
    if not account.project_id:
        if account.has_activity:
            yield Goal("Activity", reverse("account_activity"), "page", "events log")
        if account.has_webhooks:
            yield Goal("Webhooks", reverse("webhooks"), "page")
        yield Goal("API keys", reverse("api_keys"), "page")
        if not account.read_only:
            yield Goal("Create project", reverse("project_create"), "action", "new")
            yield Goal("Create API key", reverse("api_key_create"), "action", "new")


def _of_console(account: Account) -> Iterator[Goal]:
    if account.is_operator:
        yield Goal("Service status", reverse("status"), "page", "hosts worker proxy disk")
    yield Goal("Preferences", reverse("preferences"), "action", "dark light theme")
    yield Goal("Keyboard shortcuts", reverse("shortcuts"), "page", "keys help")
    yield Goal("Sign in with another key", reverse("sign_in"), "action", "account server")


def _here(request: ConsoleRequest, project_id: str) -> Iterator[Goal]:
    """Yield what is in the open project; nothing if no project is open, or if it cannot be read."""
    if not project_id:
        return
    api = request.api
    try:
        project, endpoints, branches = in_parallel(
            lambda: api.project(project_id),
            lambda: api.endpoints(project_id),
            lambda: api.branches(project_id),
        )
    except APIError:
        return
    account = present_account(request)
    yield from _of_project(project, account)
    yield from _endpoints(project, endpoints, branches)
    shown = BRANCH_PATH.search(_current_path(request))
    for branch in branches:
        yield _branch(project, branch)
        if account.is_perch and (branch.default or (shown and shown[1] == branch.id)):
            url = reverse("branch_history", args=[project.id, branch.id])
            yield Goal(f"Go back to a moment of {branch.name}", url, "action", PAST_WORDS)


def _of_project(project: Project, account: Account) -> Iterator[Goal]:
    tabs = {
        "Endpoints": "project",
        "Branches": "branches",
        "Operations": "operations",
        "Settings": "project_settings",
    }
    if account.has_activity:
        tabs["Activity"] = "project_activity"
    if account.is_perch:
        tabs |= {"Query": "query", "Tables": "tables"}
    for label, name in tabs.items():
        yield Goal(f"{label} of {project.name}", reverse(name, args=[project.id]), "page")
    if not account.read_only:
        for label, name in {
            "Create endpoint": "endpoint_create",
            "Create branch": "branch_create",
            "Rename project": "project_rename",
        }.items():
            yield Goal(label, reverse(name, args=[project.id]), "action", project.name)


def _elsewhere(request: ConsoleRequest, projects: Sequence[Project]) -> list[Goal]:
    """Return the branches and endpoints of other projects, as far as they can be read."""
    api = request.api
    read = each_or_none(
        lambda project: in_parallel(
            lambda: api.branches(project.id), lambda: api.endpoints(project.id)
        ),
        projects,
    )
    return [
        goal
        for project, (branches, endpoints) in zip(
            projects, (one or ((), ()) for one in read), strict=True
        )
        for goal in (
            *(_branch(project, branch, project.name) for branch in branches),
            *_endpoints(project, endpoints, branches, project.name),
        )
    ]


def _endpoints(
    project: Project, endpoints: Iterable[Endpoint], branches: Iterable[Branch], where: str = ""
) -> Iterator[Goal]:
    names = {branch.id: branch.name for branch in branches}
    for endpoint in endpoints:
        url = reverse("endpoint", args=[project.id, endpoint.id])
        branch_name = names.get(endpoint.branch_id, endpoint.branch_id)
        yield Goal(endpoint.id, url, "endpoint", f"on {branch_name}", where)


def _branch(project: Project, branch: Branch, where: str = "") -> Goal:
    url = reverse("branch", args=[project.id, branch.id])
    return Goal(branch.name, url, "branch", branch.id, where)


def _current_path(request: ConsoleRequest) -> str:
    return (request.htmx.current_url_abs_path or "") if request.htmx else ""
