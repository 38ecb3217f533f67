"""Changes of a table's rows: a row's values, by SQL that is shown before it runs, and CSV."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.pages.responses import READ_ONLY
from console.query.csv_text import UnreadableCsv, read_csv
from console.query.place import PlaceRefused, failure_words, run
from console.query.schema_tree import read_table
from console.query.sql_over_http import Query, SqlFailed
from console.query.table_pages import (
    Description,
    TableColumn,
    describe,
    insert_query,
    read_description,
    read_row_name,
    row_query,
    update_sql,
)
from console.query.tables import PLACE, ROWS, chosen_place, query_of
from console.query.views import require_perch
from console.request import ConsoleRequest

# Bytes of a file that is imported, values in it, and rows of a statement.
LONGEST_IMPORT, MOST_VALUES, AT_ONCE = 8 << 20, 500_000, 500
GONE = "The row has been changed or deleted meanwhile. Nothing was changed."


class Refused(Exception):
    """The change cannot be made. The message is for the user."""


def _described(request: ConsoleRequest, project_id: str, *more: Query) -> Description:
    """Return what is known of the table in the address. Raises Refused."""
    table = read_table(request.GET.get("table", ""))
    if require_perch(request) or table is None:
        raise Refused("Choose a table.")
    (result,) = _run(request, project_id, [describe(table)])
    described = read_description(table, result)
    if described is None:
        raise Refused(f"There is no table {table.schema}.{table.name}.")
    return described


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


def _back(request: ConsoleRequest, project_id: str) -> str:
    query = query_of(request.GET.dict(), (*PLACE, *ROWS, "after", "before"))
    return f"{reverse('tables', args=[project_id])}?{query}"


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Change a row: the values are typed, then the SQL is shown, then it runs."""
    request.shows_secrets = True
    back = _back(request, project_id)
    context: dict[str, Any] = {"back": back, "here": request.get_full_path()}
    try:
        described = _described(request, project_id)
        key = read_row_name(request.GET.get("key", ""), len(described.key))
        if not described.is_editable or key is None:
            raise Refused("This row cannot be changed here: its table has no key.")
        context["table"] = described.table
        if request.method != "POST":
            (result,) = _run(request, project_id, [row_query(described, key)])
            if len(result.rows) != 1:
                raise Refused("There is no such row any more.")
            return _show_row(request, context, described, result.rows[0], result.rows[0])
        before = read_row_name(request.POST.get("before", ""), len(described.columns))
        if before is None:
            raise Refused(GONE)
        typed = _typed(request, described, before)
    except Refused as refused:
        return render(request, "table_problem.html", {"words": refused, "back": back}, status=422)
    changes = [
        (column, was, now)
        for column, was, now in zip(described.columns, before, typed, strict=True)
        if was != now
    ]
    if not changes:
        context["refused"] = "Nothing is changed yet."
        return _show_row(request, context, described, before, typed)
    context["sql"] = sql = update_sql(described, key, changes)
    if request.POST.get("act") != "run":
        context["is_reviewed"] = request.POST.get("act") == "review"
        return _show_row(request, context, described, before, typed)
    try:
        (result,) = _run(request, project_id, [Query(sql)], read_only=False)
        if result.row_count != 1:
            raise Refused(GONE)
    except Refused as refused:
        context["refused"] = str(refused)
        return _show_row(request, context, described, before, typed)
    messages.success(request, f"The row of {described.table.name} was changed.")
    return HttpResponseRedirect(back)


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


def _show_row(
    request: ConsoleRequest,
    context: dict[str, Any],
    described: Description,
    before: Sequence[str | None],
    typed: Sequence[str | None],
) -> HttpResponse:
    fields = [
        {"n": n, "column": column, "value": value or "", "is_null": value is None,
         "rows": min(8, (value or "").count("\n") + 1)}
        for n, (column, value) in enumerate(zip(described.columns, typed, strict=True))
    ]  # fmt: skip
    context |= {"fields": fields, "before": json.dumps(list(before), ensure_ascii=False)}
    status = 422 if "refused" in context else 200
    return render(request, "table_row.html", context, status=status)


class ImportForm(forms.Form):
    file = forms.FileField(
        label="CSV file",
        widget=forms.FileInput(attrs={"accept": ".csv,text/csv"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def import_csv(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Insert the rows of a file: all of them or, if one is refused, none."""
    is_read_only = require_perch(request)
    back = _back(request, project_id)
    is_sent = request.method == "POST"
    form = ImportForm(request.POST, request.FILES) if is_sent else ImportForm()
    context: dict[str, Any] = {"form": form, "back": back, "here": request.get_full_path()}
    context["table"] = read_table(request.GET.get("table", ""))
    try:
        if is_read_only or context["table"] is None:
            raise Refused(READ_ONLY if is_read_only else "Choose a table.")
        if is_sent and form.is_valid():
            request.api.require_current()
            described = _described(request, project_id)
            columns, rows = _read(described, form.cleaned_data["file"].read())
            count = _insert(request, project_id, described, columns, rows)
            words = f"{count} row{'' if count == 1 else 's'} imported into {described.table.name}."
            messages.success(request, words)
            return HttpResponseRedirect(back)
    except (Refused, UnreadableCsv) as refused:
        context["refused"] = f"{refused}"
    status = 422 if form.errors or "refused" in context else 200
    return render(request, "table_import.html", context, status=status)


Numbered = tuple[int, list[str | None]]


def _read(described: Description, data: bytes) -> tuple[list[TableColumn], list[Numbered]]:
    """Return the columns that the first line names, and the rows with the numbers of their lines.
    Raises Refused, UnreadableCsv."""
    if len(data) > LONGEST_IMPORT:
        raise Refused(f"The file is larger than {LONGEST_IMPORT >> 20} MiB. Import it by \\copy.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused("The file is not in UTF-8.") from error
    if "\0" in text:
        raise Refused("The file has a null character, which Postgres does not store.")
    lines = list(read_csv(text))
    if len(lines) < 2:
        raise Refused("The file must have a line with the names of columns, and rows below it.")
    names = lines[0][1]
    columns = [column for name in names if name and (column := described.column(name))]
    if len(columns) != len(names) or len(set(names)) != len(names):
        wrong = [name or "without a name" for name in names if not described.column(name or "")]
        what = ", ".join(wrong) if wrong else "named twice"
        raise Refused(f"The table has no such columns: {what}.")
    for line, row in lines[1:]:
        if len(row) != len(columns):
            raise Refused(f"Line {line} has {len(row)} fields instead of {len(columns)}.")
    if len(lines) * len(columns) > MOST_VALUES:
        raise Refused(f"The file has more than {MOST_VALUES:,} values. Import it by \\copy.")
    return columns, lines[1:]


def _insert(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    columns: Sequence[TableColumn],
    rows: Sequence[Numbered],
) -> int:
    """Insert the rows in one transaction; return how many. Raises Refused."""
    parts = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    queries = [insert_query(described, columns, [row for _, row in part]) for part in parts]
    try:
        run(request, project_id, chosen_place(request.GET.dict()), queries, read_only=False)
    except PlaceRefused as refused:
        raise Refused(str(refused)) from refused
    except SqlFailed as failure:
        words = failure_words(failure)
        if failure.code and failure.statement < len(parts):
            part = parts[failure.statement]
            words += f" It is in lines {part[0][0]} to {part[-1][0]}. No row was imported."
        raise Refused(words) from failure
    return len(rows)
