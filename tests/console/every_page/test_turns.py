"""However large a form, an answer or a page is, others have their turn while it is worked on. None
needs a service.

Here they have it as often as they could, and the tests count how often that is."""

import json
import time
from collections.abc import Callable

import gevent
import pytest
from django.template import Context, Engine

from console import turns
from console.api.bounded_http import MAX_PIECE_BYTES, read_json
from console.api.fields import Page
from console.branches.schema import read_diff
from console.query import table_imports
from console.query.csv_text import read_csv, write_csv
from console.query.results import read_plan, shown_results
from console.query.sql_over_http import Result, _result
from console.query.statements import split
from console.query.table_description import Description, Table, TableColumn, listed_tables
from console.query.table_pages import PageOf
from console.query.tables import _rows_page

NAMES = [f"c{n}" for n in range(1600)]
COLUMNS = [
    TableColumn(
        name, "text", "text", is_nullable=True, is_generated=False, is_identity=False,
        is_long=True, is_exact=True, operators=["="],
    )
    for name in NAMES
]  # fmt: skip
WIDE = Description(
    Table("public", "t"), COLUMNS, [], 0, is_insertable=True, is_updatable=True, has_rules=False
)
OURS = Engine(builtins=["console.templatetags.console_tags"])


def insert_query(rows: int) -> object:
    return table_imports._query(WIDE, COLUMNS, [[""] * 1600] * rows)


def page_of_table(rows: int) -> object:
    row = ["1"] * 1600 + ["n", "k", "{}"]
    return _rows_page(WIDE, PageOf(), Result("SELECT", rows, [], [row] * rows), {}, most=rows)


def listed(columns: int) -> object:
    text = json.dumps([["a", "text"]] * columns)
    return listed_tables(Result("SELECT", 1, [], [["public", "t", "r", text]]))


# Each does work of so many pieces.
WORK: dict[str, Callable[[int], object]] = {
    "statements": lambda n: split("a+" * n),
    "semicolons": lambda n: split(";" * n),
    "parentheses": lambda n: split("(" * n),
    "comments": lambda n: split("/**/" * n),
    "nested comments": lambda n: split("/*" * n),
    "surrogates in an answer": lambda n: read_json(b'["\\ud83d"' + b',""' * n + b"]"),
    "rows of a large answer": lambda n: read_json(
        b'{"results": [{"rows": [' + b"[]," * n + b"[]]}]" + b" " * MAX_PIECE_BYTES + b"}"
    ),
    "items of an answer": lambda n: Page.read({"x": [{}] * n}, "x", dict, limit=100),
    "columns of a result": lambda n: _result({"fields": [{}] * n}),
    "rows of a result": lambda n: _result({"rows": [[]] * n}),
    "results of a page": lambda n: shown_results([Result("SELECT", 0, [], [])] * n),
    "rows of CSV": lambda n: write_csv([[]] * n),
    "values of CSV": lambda n: write_csv([[""] * n]),
    "rows of a file": lambda n: list(read_csv("\n" * n)),
    "values of a file": lambda n: list(read_csv(("," * 1000 + "\n") * (n // 1000))),
    "rows of an import": lambda n: insert_query(n // 1000),
    "rows of a table": lambda n: page_of_table(n // 1000),
    "columns of tables": listed,
    "lines of a difference": lambda n: read_diff("@@ -1 +1 @@\n" + "+x\n" * n),
    "steps of a plan": lambda n: read_plan(
        json.dumps([{"Plan": {"Node Type": "a", "Plans": [{"Node Type": "a"}] * n}}])
    ),
    "a list of a page": lambda n: OURS.from_string("{% for one in all %}{% endfor %}").render(
        Context({"all": range(n)})
    ),
}
# Work that goes by rows of 1,600 columns.
IN_ROWS = ("rows of an import", "rows of a table")


@pytest.mark.parametrize("name", WORK)
def test_others_have_their_turn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(turns, "MAX_WORK", 0)
    monkeypatch.setattr(time, "sleep", pauses.append)
    pieces = 4_000
    WORK[name](pieces)
    assert len(pauses) >= (pieces // 1000 if name in IN_ROWS else pieces)
    # After pauses of 0, gevent looks at nobody else for a while.
    assert min(pauses) > 0


def test_work_goes_on_as_long_as_others_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WORK", 2)
    monkeypatch.setattr(turns, "_began", 0)
    now, pauses = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", pauses.append)
    for _ in turns.in_turns(range(10)):
        now[0] += 1
    assert pauses == [turns.PAUSE] * 4


def test_a_socket_is_served_during_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each pause: after one of 0 s, gevent goes on with the same greenlet for up to 50 times."""
    monkeypatch.setattr(turns, "MAX_WORK", 0)
    monkeypatch.setattr(time, "sleep", gevent.sleep)
    served: list[int] = []

    def serve() -> None:
        while True:
            gevent.sleep(0.000_001)
            served.append(1)

    serving = gevent.spawn(serve)
    for _ in turns.in_turns(range(200)):
        pass
    serving.kill()
    assert len(served) >= 100
