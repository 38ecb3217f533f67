"""Where SQL runs: a branch, or a past moment of one, a database and a role. Pages choose it by the
fields of `PlaceForm`. The password is requested from the API each time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms

from console.api.errors import APIError
from console.api.parallel import in_parallel
from console.api.resources.branches import Branch, Database
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.forms.fields import OpenChoiceField, offer
from console.pages.problems import sentence, words_beside
from console.query import sql_over_http
from console.query.sql_over_http import Query, Result, SqlFailed
from console.request import ConsoleRequest

# The choices for the most seconds that a statement may take, and the default.
TIMEOUTS = (10, 30, 60, 300)
DEFAULT_TIMEOUT = 30
# The parameters that name the place.
PLACE = ("past_endpoint", "moment", "branch", "database", "role")
UNKNOWN = "Choose an existing branch, database and role."


class PlaceForm(forms.Form):
    # If a past moment of the branch is read: the endpoint that does this, and the moment.
    past_endpoint = forms.SlugField(required=False, widget=forms.HiddenInput)
    moment = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    branch = OpenChoiceField(widget=forms.Select(attrs={"data-choose": "place"}))
    database = OpenChoiceField()
    role = OpenChoiceField()

    @property
    def place(self) -> list[forms.BoundField]:
        """The fields that depend on the branch."""
        return [self["database"], self["role"]]

    def offer_branches(self, branches: Iterable[Branch], endpoints: Iterable[Endpoint]) -> None:
        """Offer the branches that have an endpoint, the default branch first."""
        reached = {endpoint.branch_id for endpoint in endpoints}
        found = sorted(branches, key=lambda branch: not branch.default)
        offer(
            self, "branch", ((branch.id, branch.name) for branch in found if branch.id in reached)
        )

    def offer_place(self, databases: Sequence[Database], roles: Sequence[str]) -> None:
        """Offer the databases and roles. The default role is the first owner of a database."""
        offer(self, "database", ((one.name, one.name) for one in databases))
        offer(self, "role", ((role, role) for role in roles))
        owners = [one.owner_name for one in databases if one.owner_name in roles]
        self.initial.setdefault("database", next((one.name for one in databases), ""))
        self.initial.setdefault("role", owners[0] if owners else next(iter(roles), ""))


def chosen_place(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "") for name in PLACE}


class Refused(Exception):
    """What is asked for cannot be done, or the API refused what is needed to reach the place. The
    message is for the user."""


def offer_places(request: ConsoleRequest, project_id: str, form: PlaceForm) -> dict[str, Any]:
    """Read and fill the form's choices. Raises an `APIError`."""
    api = request.api
    project, branches, endpoints = in_parallel(
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
    )
    for name in ("past_endpoint", "moment"):
        form.initial[name] = request.GET.get(name, "")
    if form["past_endpoint"].value():
        # Only the branch of the moment can be read through its endpoint.
        only = form.data.get("branch") or request.GET.get("branch", "")
        offer(form, "branch", ((one.id, one.name) for one in branches if one.id == only))
    else:
        form.offer_branches(branches, endpoints)
    offered = [value for value, _ in form.fields["branch"].choices]  # type: ignore[attr-defined]
    requested = request.POST.get("branch") or request.GET.get("branch", "")
    chosen = requested if requested in offered else next(iter(offered), "")
    form.initial.setdefault("branch", chosen)
    if chosen:
        databases, roles = in_parallel(
            lambda: api.catalog.databases(project_id, chosen),
            lambda: api.catalog.role_names(project_id, chosen),
        )
        if request.POST.get("act") == "choose":
            # What was chosen on another branch may not exist on this one.
            names = {"database": [one.name for one in databases], "role": roles}
            form.data = {
                name: value
                for name, value in form.data.items()
                if name not in names or value in names[name]
            }
        for name in ("database", "role"):
            if name in request.GET:
                form.initial[name] = request.GET[name]
        form.offer_place(databases, roles)
    is_awake = is_active(endpoints, chosen) or bool(form["past_endpoint"].value())
    return {
        "project": project,
        "has_branch": bool(chosen),
        "is_awake": is_awake,
        # The branch that was asked for, if it has no endpoint.
        "unreached": next(
            (one for one in branches if one.id == requested and one.id not in offered), None
        ),
    }


def is_active(endpoints: Iterable[Endpoint], branch_id: str) -> bool:
    return any(one.branch_id == branch_id and one.current_state == "active" for one in endpoints)


def context_without_choices(project_id: str, form: PlaceForm) -> dict[str, Any]:
    """Return the context of a page whose choices cannot be read. It keeps what was chosen."""
    form.offer_branches([], [])
    form.offer_place([], [])
    return {"project": Project.read({"id": project_id}), "has_branch": True}


def connection_uri(request: ConsoleRequest, project_id: str, chosen: dict[str, Any]) -> str:
    """Return the connection string, with the password, of the place that a valid form has chosen.
    The string is requested each time and kept only until the queries have ended. Raises
    Refused."""
    past = chosen.get("past_endpoint", "")
    try:
        request.api.transport.require_current()
        return request.api.connection_uri(
            project_id,
            branch_id="" if past else chosen["branch"],
            endpoint_id=past,
            role=chosen["role"],
            database=chosen["database"],
            pooled=False,
        )
    except APIError as problem:
        raise Refused(words_beside(problem)) from problem


def run(
    request: ConsoleRequest,
    project_id: str,
    chosen: dict[str, Any],
    queries: Sequence[Query],
    *,
    read_only: bool = True,
    exact: bool = False,
    uri: str = "",
) -> list[Result]:
    """Run the queries at the place that a valid form has chosen. `uri` is the connection string of
    an earlier run for the same page. Raises Refused, SqlFailed."""
    return sql_over_http.run(
        request.api.server,
        uri or connection_uri(request, project_id, chosen),
        queries,
        seconds=chosen.get("seconds") or DEFAULT_TIMEOUT,
        read_only=read_only,
        memory=request.memory,
        marker=chosen.get("marker", ""),
        exact=exact,
    )


def failure_words(failure: SqlFailed) -> str:
    """Return the failure in one paragraph."""
    parts = [sentence(failure.message), failure.detail]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)
