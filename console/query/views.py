"""The query page: SQL on a branch as one of its roles, and a browser of its tables.

Nothing is stored: what is typed is sent with the form, and results are shown once.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from console.api.errors import APIError, NotOffered
from console.api.parallel import in_parallel
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.api.resources.roles import Database
from console.forms.fields import OpenChoiceField, offer
from console.pages.problems import words_beside
from console.pages.responses import READ_ONLY
from console.query import sql_over_http
from console.query.results import (
    EXPLAIN,
    TABLES,
    all_shown,
    by_schema,
    look_at,
    mark_of,
    read_table,
)
from console.query.sql_over_http import Query, SqlFailed
from console.query.statements import MOST_STATEMENTS, split
from console.request import ConsoleRequest
from console.sign_in import sessions

# The choices for the most seconds that a statement may take, and the default.
TIMES = (10, 30, 60, 300)
USUALLY = 30


class QueryForm(forms.Form):
    # If a past moment of the branch is read: the endpoint that does this, and the moment.
    past_endpoint = forms.SlugField(required=False, widget=forms.HiddenInput)
    moment = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    branch = OpenChoiceField(widget=forms.Select(attrs={"data-choose": "place"}))
    database = OpenChoiceField()
    role = OpenChoiceField()
    seconds = forms.TypedChoiceField(
        label="Timeout",
        choices=[(seconds, f"{seconds} s") for seconds in TIMES],
        coerce=int,
        required=False,
        empty_value=None,
        initial=USUALLY,
    )
    read_only = forms.BooleanField(label="Read only", required=False, initial=True)
    sql = forms.CharField(
        label="SQL",
        strip=False,
        required=False,
        widget=forms.Textarea(
            attrs={
                "rows": 9,
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
                "data-run": "",
                "placeholder": "SELECT version();",
            }
        ),
    )

    @property
    def place(self) -> list[forms.BoundField]:
        """The fields that depend on the branch."""
        return [self["database"], self["role"]]

    def offer_branches(self, branches: Iterable[Branch], endpoints: Iterable[Endpoint]) -> None:
        """Offer the branches that have an endpoint, the default branch first."""
        reached = {endpoint.branch_id for endpoint in endpoints}
        found = sorted(branches, key=lambda branch: not branch.default)
        offer(
            self,
            "branch",
            ((branch.id, branch.name) for branch in found if branch.id in reached),
        )

    def offer_place(self, databases: Sequence[Database], roles: Sequence[str]) -> None:
        """Offer the databases and roles. The default role is the first owner of a database."""
        offer(self, "database", ((one.name, one.name) for one in databases))
        offer(self, "role", ((role, role) for role in roles))
        owners = [one.owner_name for one in databases if one.owner_name in roles]
        self.initial.setdefault("role", owners[0] if owners else next(iter(roles), ""))


@require_http_methods(["GET", "HEAD", "POST"])
def show(request: ConsoleRequest, project_id: str) -> HttpResponse:
    sign_in = sessions.present(request)
    if sign_in is not None and not sign_in.account.is_perch:
        raise NotOffered("Queries need a Perch server.")
    is_read_only = sign_in is not None and sign_in.account.read_only
    form = QueryForm(request.POST or None)
    act = request.POST.get("act", "")
    answer: dict[str, Any] = {"asked_tables": act == "tables", "project_id": project_id}
    if is_read_only:
        answer["refused"] = READ_ONLY
    elif request.method == "POST" and act != "choose":
        answer |= _answer(request, project_id, form)
    if request.htmx and request.method == "POST" and act != "choose":
        # For htmx, answer only with the part that was asked for.
        template = "_query_tables.html" if act == "tables" else "_query_answer.html"
        return render(request, template, answer)
    context = _place(request, project_id, form) | answer | {"form": form}
    template = "_query_place.html" if request.htmx and act == "choose" else "query.html"
    return render(request, template, context)


def _place(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
    """Fill the form's choices. If they cannot be read, what was typed and answered still stays."""
    is_asked_for = request.POST.get("act") == "choose"
    try:
        return _offer(request, project_id, form)
    except APIError as problem:
        # An open page shows the problem, and keeps the choices that it has.
        if request.method != "POST" or (request.htmx and is_asked_for):
            raise
        refused = {"refused": words_beside(problem)} if is_asked_for else {}
    form.offer_branches([], [])
    form.offer_place([], [])
    return {"project": Project.read({"id": project_id}), "has_branch": True, **refused}


def _offer(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
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
            lambda: api.databases(project_id, chosen), lambda: api.roles(project_id, chosen)
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
    return {"project": project, "has_branch": bool(chosen)}


def _answer(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
    """Return the template context for what was asked for."""
    if not form.is_valid():
        return {"refused": "Choose an existing branch, database and role."}
    typed: str = form.cleaned_data["sql"].replace("\r\n", "\n")
    if table := read_table(request.POST.get("table", "")):
        answer = _run(request, project_id, form, look_at(table))
        if "results" in answer:
            columns, rows = all_shown(answer["results"])
            return {"table": table, "columns": columns, "rows": rows}
        return answer
    if request.POST.get("act") == "tables":
        answer = _run(request, project_id, form, [TABLES])
        if "results" in answer:
            return {"schemas": by_schema(answer["results"][0])}
        return answer
    statements = split(typed)
    if not statements:
        return {"refused": "Enter a statement."}
    if len(statements) > MOST_STATEMENTS:
        return {"refused": f"At most {MOST_STATEMENTS} statements can be run at once."}
    prefix = EXPLAIN if request.POST.get("act") == "explain" else ""
    queries = [Query(prefix + statement.text) for statement in statements]
    answer = _run(request, project_id, form, queries)
    if failure := answer.get("failure"):
        return answer | {"mark": mark_of(failure, typed, statements, prefix=prefix)}
    if "results" in answer:
        texts = [one.text for one in statements] if len(statements) > 1 else []
        answer["results"] = all_shown(answer["results"], texts)
    return answer


def _run(
    request: ConsoleRequest, project_id: str, form: QueryForm, queries: list[Query]
) -> dict[str, Any]:
    """Run the queries. Returns their results, or why there are none.

    The password is requested each time, and kept only until the queries have ended.
    """
    chosen = form.cleaned_data
    try:
        request.api.require_current()
        uri = request.api.connection_uri(
            project_id,
            branch_id="" if chosen["past_endpoint"] else chosen["branch"],
            endpoint_id=chosen["past_endpoint"],
            role=chosen["role"],
            database=chosen["database"],
            pooled=False,
        )
    except APIError as problem:
        return {"refused": words_beside(problem)}
    began = time.perf_counter()
    try:
        results = sql_over_http.run(
            request.api.server,
            uri,
            queries,
            seconds=chosen["seconds"] or USUALLY,
            read_only=chosen["read_only"],
        )
    except SqlFailed as failure:
        return {"failure": failure, "is_read_only": chosen["read_only"]}
    return {"results": results, "ms": round((time.perf_counter() - began) * 1000)}
