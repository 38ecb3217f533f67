"""The page of tables: rows with a filter, sorted, in pages. Rows are changed by SQL that is shown
before it runs; CSV is imported and exported.

The place, the table and the page are in the address, so that it can be kept and sent to others."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.memory import Reservation
from console.pages.responses import show_dialog
from console.query.csv_text import Row, write_csv
from console.query.place import (
    PLACE,
    PlaceForm,
    Refused,
    chosen_place,
    connection_uri,
    failure_words,
    offer_places,
    run,
)
from console.query.results import MAX_PAGE_LENGTH, MAX_VALUE_LENGTH, MIN_CELL_LENGTH, Cell
from console.query.sql_over_http import Query, Result, SqlFailed, TooLarge
from console.query.sql_over_http import run as run_sql
from console.query.table_description import (
    TABLE_NAMES,
    Description,
    Table,
    TableColumn,
    describe,
    listed_tables,
    read_description,
    read_table,
)
from console.query.table_pages import (
    OPERATORS,
    Filter,
    PageOf,
    page_query,
    read_row_name,
    read_sizes,
    row_query,
)
from console.query.views import require_perch
from console.request import ConsoleRequest
from console.turns import in_turns

# The parameters that name the rows.
ROWS = ("table", "sort", "desc", "column", "op", "value")
# The most rows of a page, and the rows of an export that are requested at once.
PAGE_SIZE, EXPORT_BATCH_SIZE = 50, 1000
# Characters of a value that is shown in its row.
MAX_CELL_LENGTH = 300


def query_of(given: Mapping[str, str], names: Sequence[str], **more: str) -> str:
    """Return the parameters with these names, and `more`, as the query of an address."""
    chosen = {name: given.get(name, "") for name in names} | more
    return urlencode({name: value for name, value in chosen.items() if value})


def read_page(described: Description, given: Mapping[str, str]) -> PageOf:
    """Read which page an address means. What is invalid is left out."""
    column = described.column(given.get("column", ""))
    operator = given.get("op", "")
    value = given.get("value", "").replace("\0", "")
    only = Filter(column, operator, value) if column and operator in OPERATORS else None
    sort = described.column(given.get("sort", ""))
    return PageOf(
        sort if sort and sort.operators else None,
        bool(given.get("desc")),
        only,
        is_backward=not given.get("after") and bool(given.get("before")),
    )


@dataclass(frozen=True)
class RowsPage:
    # Each column, with the parameters that sort by it, or the other way round, and "ascending" or
    # "descending" if the rows are sorted by it. The parameters are "" if nothing can do that.
    headings: Sequence[tuple[TableColumn, str, str]]
    # The cells of each row, and the parameters that name it; "" if nothing does.
    rows: Sequence[tuple[Sequence[Cell], str]]
    # The parameters of the pages beside; "" if there is none.
    previous: str
    following: str
    # True if there are more rows, and no page has them.
    is_cut: bool
    # How many rows there are, in words; "" if nothing is known.
    count: str


def index(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Show the tables and the rows of one. A request that is not a POST starts no endpoint."""
    # The rows may be secrets.
    request.shows_secrets = True
    is_read_only = require_perch(request)
    form = PlaceForm()
    # Choosing a branch must not send this form.
    form.fields["branch"].widget.attrs.clear()
    context = offer_places(request, project_id, form) | {"form": form}
    given = request.GET.dict() | {name: form[name].value() or "" for name in PLACE}
    table = read_table(given.get("table", ""))
    context |= {
        "table": table,
        "given": given,
        "operators": OPERATORS.items(),
        "place_query": query_of(given, PLACE),
        "query": query_of(given, (*PLACE, *ROWS)),
        "hidden": {name: given.get(name, "") for name in (*PLACE, *ROWS)},
    }
    is_starting = request.method == "POST"
    if context["has_branch"] and not is_read_only and (context["is_awake"] or is_starting):
        try:
            # The parts that were read are shown, even if the next one fails.
            for part in _parts(request, project_id, given, table):
                context |= part
        except Refused as refused:
            context["refused"] = str(refused)
        except SqlFailed as failure:
            context["failure"] = failure
        else:
            if is_starting:
                return HttpResponseRedirect(request.get_full_path())
    return render(request, "tables.html", context)


def _parts(
    request: ConsoleRequest, project_id: str, given: dict[str, str], table: Table | None
) -> Iterator[dict[str, Any]]:
    """Yield the list of tables and, if one is chosen, what is known of it and its page. Raises as
    `run` does."""
    place = chosen_place(given)
    uri = connection_uri(request, project_id, place)

    def ask(*queries: Query) -> list[Result]:
        return run(request, project_id, place, queries, exact=True, uri=uri)

    listed, *about = ask(TABLE_NAMES, *([describe(table)] if table else []))
    yield listed_tables(listed)
    if table is None:
        return
    described = read_description(table, about[0])
    if described is None:
        raise Refused(f"There is no table {table.schema}.{table.name} with columns.")
    yield {
        "described": described,
        "is_editable": described.is_editable and not given.get("past_endpoint"),
    }
    page = read_page(described, given)
    order = page.order(described)
    if order and (name := given.get("after") or given.get("before")):
        behind: Sequence[str | None] | None = read_row_name(name, len(order))
        if behind is None:
            # The name is a digest.
            query = row_query(described, order, order, name, longest=sys.maxsize)
            (found,) = ask(query)
            if len(found.rows) != 1:
                raise Refused("The row beside this page was changed or deleted meanwhile.")
            behind = found.rows[0][:-1]
        page = replace(page, behind=behind)
    rows, longest = _extent(described)
    query = page_query(described, page, rows=rows + 1, longest=longest)
    (result,) = ask(query)
    yield {"page": _rows_page(described, page, result, given, most=rows)}


def _extent(described: Description) -> tuple[int, int]:
    """Return how many rows are on a page, and how many characters of a value, so that every row of
    the page can be shown. A value of a row that has a name can be opened alone."""
    width = len(described.columns)
    rows = max(1, min(PAGE_SIZE, MAX_PAGE_LENGTH // (MIN_CELL_LENGTH * width)))
    longest = MAX_CELL_LENGTH if described.key else MAX_VALUE_LENGTH
    return rows, min(longest, MAX_PAGE_LENGTH // (rows * width))


def _rows_page(
    described: Description, page: PageOf, result: Result, given: dict[str, str], *, most: int
) -> RowsPage:
    width = len(described.columns)
    complete = [row for row in result.rows if len(row) == width + 3]
    rows, has_more = complete[:most], len(complete) > most
    if page.is_backward:
        rows.reverse()
    base = query_of(given, (*PLACE, *ROWS))
    has_previous = has_more if page.is_backward else bool(page.behind)
    has_next = True if page.is_backward else has_more
    can_turn = bool(rows and described.key)
    is_all = not (has_previous or has_next)

    def at(parameter: str, name: str | None) -> str:
        return f"{base}&{urlencode({parameter: name})}"

    return RowsPage(
        [_heading(one, page, given) for one in in_turns(described.columns)],
        [
            (_cells(described, row), at("key", row[-2]) if described.key else "")
            for row in in_turns(rows)
        ],
        at("before", rows[0][-3]) if can_turn and has_previous else "",
        at("after", rows[-1][-3]) if can_turn and has_next else "",
        has_more and not described.key,
        _count(described, len(rows), is_all=is_all, is_filtered=page.only is not None),
    )


def _cells(described: Description, row: Sequence[str | None]) -> list[Cell]:
    cells = []
    for column, value, size in zip(described.columns, row, read_sizes(row[-1]), strict=False):
        text = "NULL" if value is None else str(value)
        is_cut = column.is_long and size > len(text.encode(errors="replace"))
        whole = size if is_cut else 0
        cells.append(Cell(text, value is None, column.is_number, whole, column.name))
    return cells


def _count(described: Description, shown: int, *, is_all: bool, is_filtered: bool) -> str:
    """Return how many rows there are, in words. `shown` are on the page. If these are not all, it
    is Postgres's estimate, because to count the rows of a large table takes long."""
    if is_all:
        rows, match = ("1 row", " matches") if shown == 1 else (f"{shown} rows", " match")
        return f"{rows}{match if is_filtered else ''}"
    if is_filtered:
        return ""
    if described.estimated_rows <= shown:
        # It has not been analyzed, or not since it was small.
        return f"more than {shown} rows"
    return f"about {described.estimated_rows:,} rows (an estimate)"


def _heading(
    column: TableColumn, page: PageOf, given: dict[str, str]
) -> tuple[TableColumn, str, str]:
    is_sorted = page.sort is not None and page.sort.name == column.name
    order = ("descending" if page.is_descending else "ascending") if is_sorted else ""
    turned = {"sort": column.name, "desc": "1" if order == "ascending" else ""}
    query = query_of(given, (*PLACE, *ROWS), **turned) if column.operators else ""
    return column, query, order


@require_POST
def export(request: ConsoleRequest, project_id: str) -> HttpResponseBase:
    """Answer with the filtered rows, in their order, as CSV. SQL over HTTP has no COPY. The rows
    are read page by page, each page in a transaction of its own, so that a table of any size can be
    exported."""
    given = request.POST.dict()
    back = f"{reverse('tables', args=[project_id])}?{query_of(given, (*PLACE, *ROWS))}"
    table = read_table(given.get("table", ""))
    if require_perch(request) or table is None:
        return refusal_page(request, "Choose a table.", back)
    try:
        uri = connection_uri(request, project_id, chosen_place(given))
        pages = _pages(request, uri, table, given)
        # A failure of the first page can still be shown.
        waiting = [next(pages)]
    except Refused as refused:
        return refusal_page(request, str(refused), back)
    except SqlFailed as failure:
        return refusal_page(request, failure_words(failure), back)

    def lines() -> Iterator[str]:
        # Nothing may hold it once it is sent.
        yield waiting.pop()
        yield from pages

    name = re.sub(r"[^\w-]", "_", table.name, flags=re.ASCII)
    return StreamingHttpResponse(
        lines(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


def refusal_page(request: ConsoleRequest, words: str, back: str) -> HttpResponse:
    context = {"words": words, "back": back}
    return show_dialog(request, "_table_problem.html", context, title="Not possible", status=422)


def _pages(request: ConsoleRequest, uri: str, table: Table, given: dict[str, str]) -> Iterator[str]:
    """Yield the text of the export: the heading with the first page, then each further page. Raises
    SqlFailed. If a page does not fit into an answer, a smaller one is requested."""
    # Each page gives the memory of the one before it back.
    with Reservation(request.memory.account) as memory:

        def ask(query: Query) -> Result:
            server = request.api.server
            return run_sql(
                server, uri, [query], seconds=60, read_only=True, memory=memory, exact=True
            )[0]

        described = read_description(table, ask(describe(table)))
        if described is None:
            raise SqlFailed(f"There is no table {table.schema}.{table.name}.")
        page = read_page(described, {**given, "after": "", "before": ""})
        width, size = len(described.columns), EXPORT_BATCH_SIZE if described.key else 0
        head: list[Row] = [[column.name for column in described.columns]]
        is_last = False
        while not is_last:
            memory.release()
            try:
                rows = ask(page_query(described, page, rows=size)).rows
            except TooLarge:
                if size < 2:
                    raise
                size //= 2
                continue
            is_last = not size or len(rows) < size
            page = replace(page, behind=[] if is_last else rows[-1][width:])
            text = write_csv([*head, *(row[:width] for row in rows)])
            head, rows = [], []
            # The client may take long to read it.
            memory.shrink(2 * sys.getsizeof(text))
            yield text
            del text
