"""The query page: SQL on a branch as one of its roles, and a look through its tables.

Nothing of it is kept: what is typed travels in the form, and what comes back is shown once.
"""

import time
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from console import sessions, sql_over_http
from console.api_errors import APIError, NotOffered, Unauthorized
from console.query_form import USUALLY, QueryForm
from console.query_rows import (
    EXPLAIN,
    TABLES,
    by_schema,
    look_at,
    mark_of,
    read_table,
    shown,
)
from console.reach import READ_ONLY
from console.request import ConsoleRequest
from console.responses import spell_out
from console.side_by_side import side_by_side
from console.sql_over_http import Query, Result, SqlFailed
from console.sql_statements import Statement, split


@require_http_methods(["GET", "HEAD", "POST"])
def show(request: ConsoleRequest, project_id: str) -> HttpResponse:
    sign_in = sessions.present(request)
    if sign_in is None or not sign_in.account.is_perch:
        raise NotOffered("Queries are asked of Perch's own proxy.")
    form = QueryForm(request.POST or None)
    act = request.POST.get("act", "")
    answer: dict[str, Any] = {}
    if sign_in.account.read_only:
        answer["refused"] = READ_ONLY
    elif request.method == "POST" and act != "choose" and form.is_valid():
        answer = _answer(request, project_id, form)
        if request.htmx:
            # Of the page only what was asked for.
            template = "_query_tables.html" if act == "tables" else "_query_answer.html"
            context = {**answer, "project_id": project_id, "asked_tables": act == "tables"}
            return render(request, template, context)
    elif request.method == "POST" and act != "choose":
        answer["refused"] = "Choose a branch, a database and a role that are there."
    context = _offer(request, project_id, form)
    template = "_query_place.html" if request.htmx and act == "choose" else "query.html"
    context |= answer | {"form": form, "asked_tables": act == "tables"}
    return render(request, template, context)


def _offer(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
    """Fill the form's lists."""
    api = request.api
    project, branches, endpoints = side_by_side(
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
    )
    form.offer_branches(branches, endpoints)
    offered = [value for value, _ in form.fields["branch"].choices]  # type: ignore[attr-defined]
    asked = request.POST.get("branch") or request.GET.get("branch", "")
    chosen = asked if asked in offered else next(iter(offered), "")
    form.initial.setdefault("branch", chosen)
    if chosen:
        databases, roles = side_by_side(
            lambda: api.databases(project_id, chosen), lambda: api.roles(project_id, chosen)
        )
        if request.POST.get("act") == "choose":
            # What was chosen on another branch may not be on this one.
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
    return {"project": project, "project_id": project.id, "has_branch": bool(chosen)}


def _answer(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
    """What was asked for, as the templates show it."""
    typed: str = form.cleaned_data["sql"].replace("\r\n", "\n")
    if table := read_table(request.POST.get("table", "")):
        answer = _run(request, project_id, form, look_at(table))
        if "results" in answer:
            columns, rows = answer["results"]
            return {"table": table, "columns": shown(columns), "rows": shown(rows)}
        return answer
    if request.POST.get("act") == "tables":
        answer = _run(request, project_id, form, [TABLES])
        if "results" in answer:
            return {"schemas": by_schema(answer["results"][0])}
        return answer
    statements = split(typed)
    if not statements:
        return {"refused": "There is no statement to run."}
    prefix = EXPLAIN if request.POST.get("act") == "explain" else ""
    queries = [Query(prefix + statement.text) for statement in statements]
    answer = _run(request, project_id, form, queries)
    if failure := answer.get("failure"):
        return answer | {"mark": mark_of(failure, typed, statements, prefix=prefix)}
    if "results" in answer:
        answer["results"] = _shown(answer["results"], statements)
    return answer


def _shown(results: list[Result], statements: list[Statement]) -> list[Any]:
    texts = [one.text for one in statements] if len(statements) > 1 else [""]
    return [shown(*pair) for pair in zip(results, texts, strict=False)]


def _run(
    request: ConsoleRequest, project_id: str, form: QueryForm, queries: list[Query]
) -> dict[str, Any]:
    """Their results, or why there are none. The password is asked for anew each time, and kept
    for as long as this takes."""
    chosen = form.cleaned_data
    try:
        uri = request.api.connection_uri(
            project_id,
            branch_id=chosen["branch"],
            endpoint_id="",
            role=chosen["role"],
            database=chosen["database"],
            pooled=False,
        )
    except Unauthorized:
        raise
    except APIError as problem:
        return {"refused": spell_out(problem)}
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
