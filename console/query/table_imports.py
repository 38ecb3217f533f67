"""The import of a CSV file into a table: all of its rows or, if one is refused, none."""

from collections.abc import Sequence
from typing import IO, Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render

from console.memory import MemoryExhausted, Reservation
from console.pages.responses import READ_ONLY, crumbs
from console.query.csv_text import UnreadableCsv, read_csv
from console.query.place import Refused, chosen_place, failure_words, run
from console.query.sql_over_http import Query, SqlFailed
from console.query.table_changes import branch_name, described_table, table_url
from console.query.table_description import Description, TableColumn, read_table
from console.query.views import require_perch
from console.request import ConsoleRequest, receives_file
from console.turns import in_turns

# Bytes of a file that is imported, values in it, and rows and values of a statement.
MAX_FILE_BYTES, MAX_VALUES, BATCH_SIZE, MAX_PARAMETERS = 8 << 20, 500_000, 500, 65_535
# Types to which Postgres cuts a longer text without a word, with their bytes.
MAX_TYPE_BYTES = {"name": 63, '"char"': 1}


class ImportForm(forms.Form):
    file = forms.FileField(
        label="CSV file",
        widget=forms.FileInput(attrs={"accept": ".csv,text/csv"}),
    )


@receives_file
def import_csv(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Insert the rows of a file: all of them or, if one is refused, none."""
    is_read_only = require_perch(request)
    back = table_url(request, project_id)
    is_sent = request.method == "POST"
    form = ImportForm(request.POST, request.FILES) if is_sent else ImportForm()
    context: dict[str, Any] = {"form": form, "back": back, "here": request.get_full_path()}
    if (table := read_table(request.GET.get("table", ""))) is None:
        return redirect(back)
    context["table"] = table
    context |= {"crumbs": crumbs(request), "place": (place := chosen_place(request.GET.dict()))}
    context["branch_name"] = branch_name(request, project_id, place["branch"])
    try:
        if is_read_only:
            raise Refused(READ_ONLY)
        if is_sent and form.is_valid():
            request.api.transport.require_current()
            described = described_table(request, project_id)
            data = _receive(form.cleaned_data["file"], request.memory)
            columns, rows = _read(described, data)
            count = _insert(request, project_id, described, columns, rows)
            _show_imported(request, described.table.name, columns, len(rows), count)
            return HttpResponseRedirect(back)
    except MemoryExhausted:
        context["refused"] = "The console has no memory for this file now. Import it later."
    except (Refused, UnreadableCsv) as refused:
        context["refused"] = f"{refused}"
    status = 422 if form.errors or "refused" in context else 200
    return render(request, "table_import.html", context, status=status)


def _show_imported(
    request: ConsoleRequest, table: str, columns: Sequence[TableColumn], sent: int, count: int
) -> None:
    """Say what was imported: `sent` rows, of which Postgres counts `count` in the table."""
    computed = ", ".join(f"{column.name}" for column in columns if _is_computed(column))
    beside = f" Postgres computed {computed} anew." if computed else ""
    if count == sent:
        words = f"{count} row{'' if count == 1 else 's'} imported into {table}.{beside}"
        messages.success(request, words)
    else:
        words = (
            f"{table} took {count} of the file's {sent} rows: a trigger or a rule of the table has "
            f"put the others elsewhere, or left them out.{beside}"
        )
        messages.warning(request, words)


def _is_computed(column: TableColumn) -> bool:
    return column.is_generated and not column.is_identity


def _receive(file: IO[bytes], memory: Reservation) -> bytes:
    """Return the content of the file, and take what its import takes up. Raises Refused, and
    MemoryExhausted."""
    data: bytes = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise Refused(f"The file is larger than {MAX_FILE_BYTES >> 20} MiB. Import it by \\copy.")
    memory.grow(_size_of_import(data))
    return data


def _size_of_import(data: bytes) -> int:
    """Return how many bytes the rows of a file and their statements take up at most, as measured:
    for each line, for each value, and for the texts and the JSON in which they are sent."""
    lines = min(data.count(b"\n") + data.count(b"\r") + 1, MAX_VALUES)
    values = min(data.count(b",") + lines, MAX_VALUES)
    return 120 * lines + 160 * values + (6 if data.isascii() else 12) * len(data)


Numbered = tuple[int, list[str | None]]


def _read(described: Description, data: bytes) -> tuple[list[TableColumn], list[Numbered]]:
    """Return the columns that the first line names, and the rows with the numbers of their lines.
    Raises Refused, UnreadableCsv."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused("The file is not in UTF-8.") from error
    if "\0" in text:
        raise Refused("The file has a null character, which Postgres does not store.")
    read = read_csv(text)
    _, names = next(read, (1, []))
    known = {column.name: column for column in described.columns}
    columns = [known[name] for name in names if name in known]
    if len(columns) != len(names) or len(set(names)) != len(names):
        wrong = [name or "without a name" for name in names if name not in known]
        what = ", ".join(wrong) if wrong else "named twice"
        raise Refused(f"The table has no such columns: {what}.")
    rows: list[Numbered] = []
    for line, row in read:
        if len(row) != len(columns):
            raise Refused(f"Line {line} has {len(row)} fields instead of {len(columns)}.")
        for column, value in zip(columns, row, strict=True):
            if value and len(value.encode()) > MAX_TYPE_BYTES.get(column.type, MAX_FILE_BYTES):
                raise Refused(f"Line {line}: the value of {column.name} is too long for its type.")
        rows.append((line, row))
        if len(rows) * len(columns) > MAX_VALUES:
            raise Refused(f"The file has more than {MAX_VALUES:,} values. Import it by \\copy.")
    if not rows:
        raise Refused("The file must have a line with the names of columns, and rows below it.")
    return columns, rows


def _insert(
    request: ConsoleRequest,
    project_id: str,
    described: Description,
    columns: Sequence[TableColumn],
    rows: Sequence[Numbered],
) -> int:
    """Insert the rows in one transaction; return how many Postgres counts. Raises Refused."""
    size = max(1, min(BATCH_SIZE, MAX_PARAMETERS // len(columns)))
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    queries = [_query(described, columns, [row for _, row in part]) for part in parts]
    place = chosen_place(request.GET.dict())
    try:
        results = run(request, project_id, place, queries, read_only=False, exact=True)
    except SqlFailed as failure:
        words = failure_words(failure)
        if failure.code and failure.statement < len(parts):
            part = parts[failure.statement]
            words += f" It is in lines {part[0][0]} to {part[-1][0]}. No row was imported."
        raise Refused(words) from failure
    return sum(result.row_count or 0 for result in results)


def _query(
    described: Description, columns: Sequence[TableColumn], rows: Sequence[Sequence[str | None]]
) -> Query:
    """Return the query that inserts the rows. As with COPY, a text that is too long for its column
    is refused, and an identity column gets the given values."""
    given: list[str | None] = []

    def place(column: TableColumn, value: str | None) -> str:
        if _is_computed(column):
            return "DEFAULT"
        given.append(value)
        return f"${len(given)}"

    values = ", ".join(f"({', '.join(map(place, columns, row))})" for row in in_turns(rows))
    names = ", ".join(column.quoted for column in columns)
    return Query(
        f"INSERT INTO {described.table.quoted} ({names}) "  # noqa: S608 # quoted
        f"OVERRIDING SYSTEM VALUE VALUES {values}",
        given,
    )
