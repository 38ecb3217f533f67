"""The page of tables: rows with a filter, sorted, in pages. Rows are changed by SQL that is shown
before it runs; CSV is imported and exported.

The place, the table and the page are in the address, so that it can be kept and sent to others.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.query.csv_text import Row, write_csv
from console.query.place import (
    PlaceForm,
    PlaceRefused,
    connection_uri,
    failure_words,
    offer_places,
    run,
)
from console.query.results import ShownResult, all_shown
from console.query.schema_tree import TABLES, Table, by_schema, read_table
from console.query.sql_over_http import Result, SqlFailed, TooLarge
from console.query.sql_over_http import run as run_sql
from console.query.table_pages import (
    OPERATORS,
    PAGE_ROWS,
    Description,
    Filter,
    PageOf,
    describe,
    page_query,
    read_description,
    read_row_name,
)
from console.query.views import require_perch
from console.request import ConsoleRequest

# The parameters that name the place, and those that name the rows.
PLACE = ("past_endpoint", "moment", "branch", "database", "role")
ROWS = ("table", "sort", "desc", "column", "op", "value")
# The rows of an export that are requested at once.
EXPORT_ROWS = 1000


def chosen_place(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "") for name in PLACE}


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
    page = PageOf(described.column(given.get("sort", "")), bool(given.get("desc")), only)
    length = len(described.key) + (page.sort is not None)
    for name in ("after", "before"):
        behind = read_row_name(given.get(name, ""), length)
        if behind:
            return replace(page, behind=behind, is_backward=name == "before")
    return page


@dataclass(frozen=True)
class Heading:
    name: str
    type: str
    is_number: bool
    # The parameters that sort by this column, or the other way round.
    query: str
    # "ascending" or "descending", if the rows are sorted by it.
    order: str


@dataclass(frozen=True)
class RowsPage:
    described: Description
    shown: ShownResult
    headings: Sequence[Heading]
    # The parameters of the form that changes each row; "" if it cannot be changed.
    edits: Sequence[str]
    # Those of the pages beside; "" if there is none.
    previous: str
    following: str
    # How many rows there are, in words; "" if nothing is known.
    count: str

    @property
    def rows(self) -> Iterator[tuple[Any, str]]:
        return zip(self.shown.rows, self.edits, strict=False)


@require_safe
def index(request: ConsoleRequest, project_id: str) -> HttpResponse:
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
    if context["has_branch"] and not is_read_only:
        try:
            context |= _rows(request, project_id, given, table)
        except PlaceRefused as refused:
            context["refused"] = str(refused)
        except SqlFailed as failure:
            context["failure"] = failure
    return render(request, "tables.html", context)


def _rows(
    request: ConsoleRequest, project_id: str, given: dict[str, str], table: Table | None
) -> dict[str, Any]:
    """Return the list of tables and, if one is chosen, its page. Raises as `run` does."""
    place = chosen_place(given)
    queries = [TABLES, *([describe(table)] if table else [])]
    listed, *about = run(request, project_id, place, queries)
    found: dict[str, Any] = {"schemas": by_schema(listed)}
    described = read_description(table, about[0]) if table else None
    if described is None:
        missing = {"refused": f"There is no table {table.schema}.{table.name}."} if table else {}
        return found | missing
    found["described"] = described
    page = read_page(described, given)
    (result,) = run(request, project_id, place, [page_query(described, page, rows=PAGE_ROWS + 1)])
    return found | {"page": _shown(described, page, result, given)}


def _shown(described: Description, page: PageOf, result: Result, given: dict[str, str]) -> RowsPage:
    rows = list(result.rows[:PAGE_ROWS])
    has_more = len(result.rows) > PAGE_ROWS
    if page.is_backward:
        rows.reverse()
    width, base = len(described.columns), query_of(given, (*PLACE, *ROWS))
    names = [json.dumps(row[width:], ensure_ascii=False) for row in rows]
    # The key comes last.
    at = width + (page.sort is not None)
    keys = [json.dumps(row[at:], ensure_ascii=False) for row in rows]
    has_previous = has_more if page.is_backward else bool(page.behind)
    has_next = True if page.is_backward else has_more
    can_turn = bool(rows and described.key)
    columns = result.columns[:width]
    (shown,) = all_shown([replace(result, columns=columns, rows=[row[:width] for row in rows])])
    is_all = not (has_previous or has_next)
    edit = f"{base}&" if described.is_editable and not given.get("past_endpoint") else ""
    return RowsPage(
        described,
        shown,
        [_heading(one.name, one.type, one.is_number, page, given) for one in columns],
        [edit and edit + urlencode({"key": key}) for key in keys],
        f"{base}&{urlencode({'before': names[0]})}" if can_turn and has_previous else "",
        f"{base}&{urlencode({'after': names[-1]})}" if can_turn and has_next else "",
        _count(described, len(rows) if is_all else None, is_filtered=page.only is not None),
    )


def _count(described: Description, whole: int | None, *, is_filtered: bool) -> str:
    """Return how many rows there are, in words. `whole` is their number if all are on the page.
    Otherwise it is Postgres's estimate, because to count the rows of a large table takes long."""
    if whole is not None:
        rows, match = ("1 row", " matches") if whole == 1 else (f"{whole} rows", " match")
        return f"{rows}{match if is_filtered else ''}"
    if is_filtered:
        return ""
    if described.estimated_rows < PAGE_ROWS:
        # It has not been analyzed, or not since it was small.
        return f"more than {PAGE_ROWS} rows"
    return f"about {described.estimated_rows:,} rows (an estimate)"


def _heading(
    name: str, type_: str, is_number: bool, page: PageOf, given: dict[str, str]
) -> Heading:
    is_sorted = page.sort is not None and page.sort.name == name
    order = ("descending" if page.is_descending else "ascending") if is_sorted else ""
    turned = {"sort": name, "desc": "1" if order == "ascending" else ""}
    return Heading(name, type_, is_number, query_of(given, (*PLACE, *ROWS), **turned), order)


@require_POST
def export(request: ConsoleRequest, project_id: str) -> HttpResponseBase:
    """Answer with the filtered rows, in their order, as CSV.

    SQL over HTTP has no COPY. The rows are read page by page, each page in a transaction of its
    own, so that a table of any size can be exported.
    """
    given = request.POST.dict()
    back = f"{reverse('tables', args=[project_id])}?{query_of(given, (*PLACE, *ROWS))}"
    table = read_table(given.get("table", ""))
    if require_perch(request) or table is None:
        return _not_exported(request, back, "Choose a table.")
    try:
        uri = connection_uri(request, project_id, chosen_place(given))
        pages = _pages(request, uri, table, given)
        # A failure of the first page can still be shown.
        first = next(pages)
    except PlaceRefused as refused:
        return _not_exported(request, back, str(refused))
    except SqlFailed as failure:
        return _not_exported(request, back, failure_words(failure))

    def lines() -> Iterator[str]:
        yield first
        yield from pages

    name = re.sub(r"[^\w-]", "_", table.name, flags=re.ASCII)
    return StreamingHttpResponse(
        lines(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


def _not_exported(request: ConsoleRequest, back: str, words: str) -> HttpResponse:
    return render(request, "table_problem.html", {"words": words, "back": back}, status=422)


def _pages(request: ConsoleRequest, uri: str, table: Table, given: dict[str, str]) -> Iterator[str]:
    """Yield the text of the export: the heading with the first page, then each further page.

    Raises SqlFailed. If a page does not fit into an answer, a smaller one is requested.
    """
    server = request.api.server

    def ask(query: Any) -> Result:
        return run_sql(server, uri, [query], seconds=60, read_only=True, exact=True)[0]

    described = read_description(table, ask(describe(table)))
    if described is None:
        raise SqlFailed(f"There is no table {table.schema}.{table.name}.")
    page = read_page(described, {**given, "after": "", "before": ""})
    width, size = len(described.columns), EXPORT_ROWS if described.key else 0
    head: list[Row] = [[column.name for column in described.columns]]
    while True:
        try:
            rows = ask(page_query(described, page, rows=size)).rows
        except TooLarge:
            if size < 2:
                raise
            size //= 2
            continue
        yield write_csv([*head, *(row[:width] for row in rows)])
        if not size or len(rows) < size:
            return
        head, page = [], replace(page, behind=rows[-1][width:])
