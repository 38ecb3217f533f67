"""Changes of a table's rows, by SQL that is shown before it runs: a row is changed, deleted or
added. The form is a dialog or, without scripts, a page of its own."""

import json
import re
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.errors import APIError
from console.pages.responses import crumbs, done, heading
from console.query.place import PLACE, Refused, chosen_place, failure_words, is_active, run
from console.query.sql_over_http import MAX_RESULT_BYTES, Query, SqlFailed
from console.query.table_description import (
    Description,
    TableColumn,
    describe,
    read_description,
    read_table,
)
from console.query.table_pages import (
    insert_sql,
    read_row_name,
    read_sizes,
    row_query,
    unchanged_row_condition,
    update_sql,
)
from console.query.tables import ROWS, query_of, refusal_page
from console.query.views import require_perch
from console.request import ConsoleRequest, receives_row

# Bytes of a value that can be changed in a form, and of one that is shown alone.
MAX_EDIT_BYTES, MAX_SHOWN_BYTES = 30_000, MAX_RESULT_BYTES - (1 << 20)
# What the buttons send: show the statement that deletes the row, and run it.
DELETIONS = REVIEW_DELETION, RUN_DELETION = "review_deletion", "run_deletion"
LINE_BREAK = re.compile(r"\r\n|\r|\n")
GONE = "The row has been changed or deleted meanwhile. Nothing was changed."


def described_table(request: ConsoleRequest, project_id: str) -> Description:
    """Return what is known of the table in the address. Raises Refused."""
    table = read_table(request.GET.get("table", ""))
    if require_perch(request) or table is None:
        raise Refused("Choose a table.")
    place = chosen_place(request.GET.dict())
    # Opening an address starts no endpoint.
    is_opened = request.method != "POST" and not place["past_endpoint"]
    if is_opened and not is_active(request.api.endpoints(project_id), place["branch"]):
        raise Refused("The endpoint is idle. Show the tables first, which starts it.")
    (result,) = _run(request, project_id, [describe(table)])
    described = read_description(table, result)
    if described is None:
        raise Refused(f"There is no table {table.schema}.{table.name} with columns.")
    return described


def table_url(request: ConsoleRequest, project_id: str) -> str:
    query = query_of(request.GET.dict(), (*PLACE, *ROWS, "after", "before"))
    return f"{reverse('tables', args=[project_id])}?{query}"


def _run(
    request: ConsoleRequest, project_id: str, queries: Sequence[Query], *, read_only: bool = True
) -> Any:
    try:
        place = chosen_place(request.GET.dict())
        return run(request, project_id, place, queries, read_only=read_only, exact=True)
    except SqlFailed as failure:
        raise Refused(failure_words(failure)) from failure


def _row(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    columns: Sequence[TableColumn],
    longest: int,
) -> tuple[list[str | None], list[int]]:
    """Return the values of the row in the address, None for one longer than `longest` bytes, and
    their sizes. Raises Refused."""
    name = request.GET.get("key", "")
    if not name or not described.key:
        raise Refused("Choose a row of a table that has a key.")
    query = row_query(described, columns, described.key, name, longest=longest)
    (result,) = _run(request, project_id, [query])
    if len(result.rows) != 1:
        raise Refused("There is no such row any more.")
    *values, sizes = result.rows[0]
    return values, read_sizes(sizes)


@require_safe
def value(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Answer with one value alone, of which the page of its row shows the beginning."""
    request.shows_secrets = True
    try:
        described = described_table(request, project_id)
        column = described.column(request.GET.get("of", ""))
        if column is None:
            raise Refused("Choose a column of the table.")
        (text,), (size,) = _row(request, project_id, described, [column], MAX_SHOWN_BYTES)
        if size > MAX_SHOWN_BYTES:
            most = f"{MAX_SHOWN_BYTES >> 20} MiB"
            raise Refused(f"The value has {size:,} bytes, of which a page shows at most {most}.")
    except Refused as refused:
        return refusal_page(request, str(refused), table_url(request, project_id))
    return HttpResponse("NULL" if text is None else text, content_type="text/plain; charset=utf-8")


@receives_row
def edit(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Change or delete a row: the values are typed, then the SQL is shown, then it runs."""
    request.shows_secrets = True
    try:
        described = described_table(request, project_id)
        if not described.is_editable:
            raise Refused("This row cannot be changed here: its table has no key.")
        if request.method != "POST":
            before, sizes = _row(request, project_id, described, described.columns, MAX_EDIT_BYTES)
        else:
            sent = read_row_name(request.POST.get("before", ""), len(described.columns))
            if sent is None:
                raise Refused(GONE)
            before, sizes = sent, []
        key = [before[described.columns.index(column)] for column in described.key]
        if None in key:
            raise Refused("The key of this row is too long to be changed here.")
    except Refused as refused:
        return refusal_page(request, str(refused), table_url(request, project_id))
    if request.method != "POST":
        return _show(request, project_id, described, before, typed=before, sizes=sizes)
    typed, refused_words = _typed(request, described, before)
    changes = [
        (column, was, now)
        for column, was, now in zip(described.columns, before, typed, strict=True)
        if was != now
    ]
    act = request.POST.get("act")
    if act in DELETIONS:
        # A row is deleted whatever its other values are by then.
        where = unchanged_row_condition(described, key, [])
        sql = f"DELETE FROM {described.table.quoted} WHERE {where}"  # noqa: S608 # quoted
    elif refused_words or not changes:
        words = refused_words or "Nothing is changed yet."
        return _show(request, project_id, described, before, typed=typed, refused=words)
    else:
        where = unchanged_row_condition(described, key, changes)
        sql = update_sql(described, changes, where)
    if act not in ("run", RUN_DELETION):
        return _show(request, project_id, described, before, typed=typed, sql=sql)
    still = Query(f"SELECT 1 FROM {described.table.quoted} WHERE {where}")  # noqa: S608 # quoted
    return _run_shown(request, project_id, described, [still, Query(sql)], before, typed)


@receives_row
def add(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Add a row, in the same way. Columns that are left empty get their defaults."""
    request.shows_secrets = True
    try:
        described = described_table(request, project_id)
        if not described.is_insertable:
            raise Refused("Postgres adds no rows here.")
    except Refused as refused:
        return refusal_page(request, str(refused), table_url(request, project_id))
    empty = [""] * len(described.columns)
    if request.method != "POST":
        return _show(request, project_id, described, None, typed=empty)
    typed, refused_words = _typed(request, described, empty)
    given = [
        (column, value)
        for n, (column, value) in enumerate(zip(described.columns, typed, strict=True))
        # What is typed, or NULL, counts even if the box of the default is still ticked.
        if not column.is_generated and (value != "" or f"default{n}" not in request.POST)
    ]
    sql = insert_sql(described, given)
    if refused_words or request.POST.get("act") != "run":
        return _show(
            request, project_id, described, None, typed=typed, sql=sql, refused=refused_words
        )
    return _run_shown(request, project_id, described, [Query(sql)], None, typed)


def _run_shown(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    queries: Sequence[Query],
    before: Sequence[str | None] | None,
    typed: Sequence[str | None],
) -> HttpResponse:
    """Run the statement that was shown, the last one of the queries, and go back to the table. The
    one before it finds the row that is changed."""
    try:
        *found, result = _run(request, project_id, queries, read_only=False)
        if found and not found[0].rows and not result.row_count:
            raise Refused(GONE)
    except Refused as refused:
        return _show(request, project_id, described, before, typed=typed, refused=str(refused))
    name, count = described.table.name, result.row_count
    is_deletion = request.POST["act"] == RUN_DELETION
    done_to = "added" if before is None else "deleted" if is_deletion else "changed"
    words = f"The row of {name} was {done_to}." if before else f"A row was added to {name}."
    if count != 1 or described.has_rules:
        # Triggers, rules and policies decide what happens, and with how many rows.
        rows = f"{count or 0} row{'' if count == 1 else 's'}"
        messages.warning(
            request,
            f"The statement ran without an error. Postgres reports {rows} {done_to} in {name}, "
            "where a trigger, a rule or a policy may have done something else. Look at the rows.",
        )
        words = ""
    return done(request, table_url(request, project_id), words, is_live=False)


def _typed(
    request: ConsoleRequest, described: Description, before: Sequence[str | None]
) -> tuple[list[str | None], str]:
    """Return the value of each column as typed, and why the form is refused, or "". A browser makes
    all line breaks alike: a value that differs only in these counts as unchanged, and one that is
    changed keeps those that it had."""
    typed: list[str | None] = []
    refused = ""
    for n, (column, was) in enumerate(zip(described.columns, before, strict=True)):
        text = request.POST.get(f"value{n}")
        if column.is_generated or text is None:
            typed.append(was)
            continue
        text = LINE_BREAK.sub("\n", text).replace("\0", "")
        breaks = set(LINE_BREAK.findall(was or ""))
        value = text.replace("\n", breaks.pop()) if len(breaks) == 1 else text
        if was is not None and LINE_BREAK.sub("\n", was) == text:
            value = was
        is_null = f"null{n}" in request.POST
        if is_null and text and value != was and f"shown_null{n}" not in request.POST:
            refused = f"Both a value and NULL are given for {column.name}. Decide which is meant."
        # A typed value replaces the NULL that the form had before.
        typed.append(None if is_null and (not text or value == was) else value)
    return typed, refused


def _show(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    before: Sequence[str | None] | None,
    *,
    typed: Sequence[str | None],
    sql: str = "",
    refused: str = "",
    sizes: Sequence[int] = (),
) -> HttpResponse:
    """Show the form. `before` are the row's values; None for a new row. `sql` is the statement that
    has been made of `typed`. Values whose sizes are too large are left out of the form, which then
    sends nothing of them."""
    is_new = before is None
    is_sent, act = request.method == "POST", request.POST.get("act")
    fields = [
        {
            "n": n,
            "column": column,
            "value": value or "",
            "is_null": value is None,
            "is_default": is_new and value == "" and (not is_sent or f"default{n}" in request.POST),
            "is_left_out": f"value{n}" not in request.POST
            if is_sent
            else n < len(sizes) and sizes[n] > MAX_EDIT_BYTES,
            # Lines wrap: a long one takes several rows.
            "rows": min(8, sum(1 + len(line) // 48 for line in (value or "").split("\n", 8))),
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
        "is_reviewed": sql and not refused and act in ("review", REVIEW_DELETION),
        "is_deletion": act == REVIEW_DELETION,
        "refused": refused,
        "place": place,
        "branch_name": branch_name(request, project_id, place["branch"]),
        "back": table_url(request, project_id),
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
