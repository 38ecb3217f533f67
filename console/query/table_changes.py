"""Changes of a table's rows, by SQL that is shown before it runs: a row is changed, deleted or
added. The form is a dialog or, without scripts, a page of its own."""

import json
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.api.errors import APIError
from console.pages.responses import crumbs, done, heading
from console.query.place import PlaceRefused, failure_words, run
from console.query.schema_tree import read_table
from console.query.sql_over_http import Query, SqlFailed
from console.query.table_pages import (
    Description,
    delete_sql,
    describe,
    insert_sql,
    read_description,
    read_row_name,
    row_query,
    update_sql,
)
from console.query.tables import PLACE, ROWS, chosen_place, query_of
from console.query.views import require_perch
from console.request import ConsoleRequest

# What the buttons send: show the statement that deletes the row, and run it.
DELETIONS = REVIEW_DELETION, RUN_DELETION = "review_deletion", "run_deletion"
GONE = "The row has been changed or deleted meanwhile. Nothing was changed."


class Refused(Exception):
    """The change cannot be made. The message is for the user."""


def described_table(request: ConsoleRequest, project_id: str) -> Description:
    """Return what is known of the table in the address. Raises Refused."""
    table = read_table(request.GET.get("table", ""))
    if require_perch(request) or table is None:
        raise Refused("Choose a table.")
    (result,) = _run(request, project_id, [describe(table)])
    described = read_description(table, result)
    if described is None:
        raise Refused(f"There is no table {table.schema}.{table.name}.")
    return described


def names_no_table(request: ConsoleRequest) -> bool:
    """True if the address has no table, as one that was typed or cut off."""
    return read_table(request.GET.get("table", "")) is None


def back_to_table(request: ConsoleRequest, project_id: str) -> str:
    query = query_of(request.GET.dict(), (*PLACE, *ROWS, "after", "before"))
    return f"{reverse('tables', args=[project_id])}?{query}"


def _run(
    request: ConsoleRequest, project_id: str, queries: Sequence[Query], *, read_only: bool = True
) -> Any:
    try:
        place = chosen_place(request.GET.dict())
        return run(request, project_id, place, queries, read_only=read_only)
    except PlaceRefused as refused:
        raise Refused(str(refused)) from refused
    except SqlFailed as failure:
        raise Refused(failure_words(failure)) from failure


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Change or delete a row: the values are typed, then the SQL is shown, then it runs."""
    request.shows_secrets = True
    if names_no_table(request):
        return redirect(back_to_table(request, project_id))
    try:
        described = described_table(request, project_id)
        key = read_row_name(request.GET.get("key", ""), len(described.key))
        if not described.is_editable or key is None:
            raise Refused("This row cannot be changed here: its table has no key.")
        if request.method != "POST":
            (result,) = _run(request, project_id, [row_query(described, key)])
            if len(result.rows) != 1:
                raise Refused("There is no such row any more.")
            before = result.rows[0]
            return _show(request, project_id, described, before, typed=before)
        sent = read_row_name(request.POST.get("before", ""), len(described.columns))
        if sent is None:
            raise Refused(GONE)
    except Refused as refused:
        return not_possible(request, project_id, str(refused))
    before, typed = sent, _typed(request, described, sent)
    if request.POST.get("act") in DELETIONS:
        sql = delete_sql(described, key)
        if request.POST["act"] == RUN_DELETION:
            return _run_shown(request, project_id, described, sql, before, typed)
        return _show(request, project_id, described, before, typed=typed, sql=sql)
    changes = [
        (column, was, now)
        for column, was, now in zip(described.columns, before, typed, strict=True)
        if was != now
    ]
    if not changes:
        words = "Nothing is changed yet."
        return _show(request, project_id, described, before, typed=typed, refused=words)
    sql = update_sql(described, key, changes)
    if request.POST.get("act") == "run":
        return _run_shown(request, project_id, described, sql, before, typed)
    return _show(request, project_id, described, before, typed=typed, sql=sql)


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Add a row, in the same way. Columns that are left empty get their defaults."""
    request.shows_secrets = True
    if names_no_table(request):
        return redirect(back_to_table(request, project_id))
    try:
        described = described_table(request, project_id)
        if not described.key:
            raise Refused("Rows cannot be added to a view here.")
    except Refused as refused:
        return not_possible(request, project_id, str(refused))
    if request.method != "POST":
        return _show(request, project_id, described, None, typed=[""] * len(described.columns))
    typed = _typed(request, described, [""] * len(described.columns))
    given = [
        (column, value)
        for n, (column, value) in enumerate(zip(described.columns, typed, strict=True))
        # What is typed, or NULL, counts even if the box of the default is still ticked.
        if not column.is_generated and (value != "" or f"default{n}" not in request.POST)
    ]
    sql = insert_sql(described, given)
    if request.POST.get("act") == "run":
        return _run_shown(request, project_id, described, sql, None, typed)
    return _show(request, project_id, described, None, typed=typed, sql=sql)


def not_possible(request: ConsoleRequest, project_id: str, words: str) -> HttpResponse:
    context = {
        "words": words,
        "back": back_to_table(request, project_id),
        "heading": heading(request),
    }
    name = "_table_problem.html" if request.htmx else "table_problem.html"
    return render(request, name, context, status=422)


def _run_shown(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    sql: str,
    before: Sequence[str | None] | None,
    typed: Sequence[str | None],
) -> HttpResponse:
    """Run the statement that was shown, and go back to the table."""
    try:
        (result,) = _run(request, project_id, [Query(sql)], read_only=False)
        if result.row_count != 1:
            raise Refused(GONE if before else "No row was added.")
    except Refused as refused:
        return _show(request, project_id, described, before, typed=typed, refused=str(refused))
    name = described.table.name
    if before is None:
        words = f"A row was added to {name}."
    else:
        is_deleted = request.POST["act"] == RUN_DELETION
        words = f"The row of {name} was {'deleted' if is_deleted else 'changed'}."
    return done(request, back_to_table(request, project_id), words, is_live=False)


def _typed(
    request: ConsoleRequest, described: Description, before: Sequence[str | None]
) -> list[str | None]:
    """Return the value of each column as typed. A browser sends every line break as two characters,
    so a value that differs only in this counts as unchanged."""
    typed: list[str | None] = []
    for n, (column, was) in enumerate(zip(described.columns, before, strict=True)):
        text = request.POST.get(f"value{n}")
        if column.is_generated or text is None:
            typed.append(was)
        elif f"null{n}" in request.POST:
            typed.append(None)
        else:
            text = text.replace("\r\n", "\n").replace("\0", "")
            typed.append(was if was is not None and was.replace("\r\n", "\n") == text else text)
    return typed


def _show(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    before: Sequence[str | None] | None,
    *,
    typed: Sequence[str | None],
    sql: str = "",
    refused: str = "",
) -> HttpResponse:
    """Show the form. `before` are the row's values; None for a new row. `sql` is the statement that
    has been made of `typed`."""
    is_new = before is None
    fields = [
        {
            "n": n,
            "column": column,
            "value": value or "",
            "is_null": value is None,
            "is_default": is_new
            and value == ""
            and (request.method != "POST" or f"default{n}" in request.POST),
            "rows": min(8, (value or "").count("\n") + 1),
        }
        for n, (column, value) in enumerate(zip(described.columns, typed, strict=True))
        if not (is_new and column.is_generated)
    ]
    place = chosen_place(request.GET.dict())
    context = {
        "table": described.table,
        "fields": fields,
        "is_new": is_new,
        "before": json.dumps(list(before or ()), ensure_ascii=False),
        "sql": sql,
        "is_reviewed": bool(sql) and request.POST.get("act") in ("review", REVIEW_DELETION),
        "is_deletion": request.POST.get("act") == REVIEW_DELETION,
        "refused": refused,
        "place": place,
        "branch_name": branch_name(request, project_id, place["branch"]),
        "back": back_to_table(request, project_id),
        "here": request.get_full_path(),
        "heading": heading(request),
    }
    if not request.htmx:
        context["crumbs"] = crumbs(request)
    name = "_table_row.html" if request.htmx else "table_row.html"
    return render(request, name, context, status=422 if refused else 200)


def branch_name(request: ConsoleRequest, project_id: str, branch_id: str) -> str:
    """Return the name that the form says; the id if it cannot be read."""
    try:
        return request.api.branch(project_id, branch_id).name
    except APIError:
        return branch_id
