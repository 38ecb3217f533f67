"""The import of a CSV file into a table: all of its rows or, if one is refused, none."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from console.pages.responses import READ_ONLY, crumbs
from console.query.csv_text import UnreadableCsv, read_csv
from console.query.place import PlaceRefused, failure_words, run
from console.query.schema_tree import read_table
from console.query.sql_over_http import SqlFailed
from console.query.table_changes import (
    Refused,
    back_to_table,
    branch_name,
    described_table,
    names_no_table,
)
from console.query.table_pages import Description, TableColumn, insert_query
from console.query.tables import chosen_place
from console.query.views import require_perch
from console.request import ConsoleRequest

# Bytes of a file that is imported, values in it, and rows of a statement.
LONGEST_IMPORT, MOST_VALUES, AT_ONCE = 8 << 20, 500_000, 500


class ImportForm(forms.Form):
    file = forms.FileField(
        label="CSV file",
        widget=forms.FileInput(attrs={"accept": ".csv,text/csv"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def import_csv(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Insert the rows of a file: all of them or, if one is refused, none."""
    is_read_only = require_perch(request)
    back = back_to_table(request, project_id)
    is_sent = request.method == "POST"
    form = ImportForm(request.POST, request.FILES) if is_sent else ImportForm()
    context: dict[str, Any] = {"form": form, "back": back, "here": request.get_full_path()}
    if names_no_table(request):
        return redirect(back)
    context["table"] = read_table(request.GET.get("table", ""))
    context |= {"crumbs": crumbs(request), "place": (place := chosen_place(request.GET.dict()))}
    context["branch_name"] = branch_name(request, project_id, place["branch"])
    try:
        if is_read_only:
            raise Refused(READ_ONLY)
        if is_sent and form.is_valid():
            request.api.require_current()
            described = described_table(request, project_id)
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
