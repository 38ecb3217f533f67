"""What the query page shows: results, shortened for reading; the position of an error; and the tree
of a plan in JSON, whose missing and wrong values must do no harm, as its server is not trusted."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from console.query.sql_over_http import Column, Notice, Result, SqlFailed
from console.query.statements import Statement

# The most levels of a tree. A deeper plan is shown as text.
MAX_DEPTH = 60
# A step is marked if it returned this many times more or fewer rows than expected.
MISESTIMATE_FACTOR = 10
# The properties that the heading and the figures of a step show already.
IN_HEADING = frozenset(
    {
        *("Node Type", "Plans", "Startup Cost", "Total Cost", "Plan Rows", "Plan Width"),
        *("Actual Startup Time", "Actual Total Time", "Actual Rows", "Actual Loops"),
        *("Relation Name", "Schema", "Alias", "Index Name", "CTE Name", "Function Name"),
        *("Parent Relationship", "Join Type", "Parallel Aware", "Async Capable", "Inner Unique"),
    }
)


@dataclass(frozen=True)
class Step:
    name: str
    # What it reads; "" if it reads other steps only.
    on: str
    # Percent of the whole plan's time if it has run, else of its cost. The steps below it do not
    # count.
    share: int
    figures: str
    # True if it returned far more or fewer rows than expected.
    is_far_off: bool
    # Conditions, keys and the like.
    details: Sequence[tuple[str, str]]
    steps: Sequence["Step"]


@dataclass(frozen=True)
class Plan:
    root: Step
    # What shares are of: "time" if the statement has run, else "cost".
    measure: str
    # How long planning and execution took; "" if the statement has not run.
    times: str


def read_plan(text: str) -> Plan | None:
    """Read a plan; None if it is none, or too deep."""
    try:
        whole = json.loads(text)[0]
        plan = whole["Plan"]
        has_run = "Actual Total Time" in plan
        root = _step(plan, max(_total(plan, has_run=has_run), 1e-9), has_run=has_run)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    spent = [
        f"{words} {_number(whole[name]):.2f} ms"
        for name, words in (("Planning Time", "planned in"), ("Execution Time", "executed in"))
        if name in whole
    ]
    return Plan(root, "time" if has_run else "cost", ", ".join(spent) if has_run else "")


def _step(
    node: Mapping[str, Any],
    whole: float,
    *,
    has_run: bool,
    level: int = 1,
    is_limited: bool = False,
) -> Step:
    if level > MAX_DEPTH:
        raise ValueError("too deep")
    below = [one for one in node.get("Plans", []) if isinstance(one, Mapping)]
    own = _total(node, has_run=has_run) - sum(_total(one, has_run=has_run) for one in below)
    expected, loops = _number(node.get("Plan Rows")), _number(node.get("Actual Loops"))
    returned = _number(node.get("Actual Rows"))
    figures = [f"cost {_number(node.get('Total Cost')):,.2f}", f"{_rows(expected)} expected"]
    if has_run and loops:
        figures = [f"{_total(node, has_run=True):,.2f} ms", _rows(returned), *figures[1:]]
        figures += [f"{loops:,.0f} times"] if loops > 1 else []
    if has_run and not loops:
        figures = ["never executed"]
    ratio = max(returned, 1) / max(expected, 1)
    # A step below a limit is stopped early, so that it may return fewer rows.
    is_far_off = ratio >= MISESTIMATE_FACTOR or (ratio <= 1 / MISESTIMATE_FACTOR and not is_limited)
    is_limited = is_limited or node.get("Node Type") == "Limit"
    return Step(
        name=_name(node),
        on=_on(node),
        share=min(100, max(0, round(100 * own / whole))),
        figures=", ".join(figures),
        is_far_off=bool(has_run and loops) and is_far_off,
        details=_details(node),
        steps=[
            _step(one, whole, has_run=has_run, level=level + 1, is_limited=is_limited)
            for one in below
        ],
    )


def _rows(count: float) -> str:
    return f"{count:,.0f} row{'' if round(count) == 1 else 's'}"


def _total(node: Mapping[str, Any], *, has_run: bool) -> float:
    """Return the time (ms) or the cost of a step with those below it."""
    if not has_run:
        return _number(node.get("Total Cost"))
    # Times are those of one loop.
    return _number(node.get("Actual Total Time")) * _number(node.get("Actual Loops"))


def _name(node: Mapping[str, Any]) -> str:
    name = str(node["Node Type"])
    join = str(node.get("Join Type", "Inner"))
    return name if join == "Inner" else f"{name} ({join})"


def _on(node: Mapping[str, Any]) -> str:
    names = ("Relation Name", "CTE Name", "Function Name")
    on = next((str(node[name]) for name in names if name in node), "")
    alias = str(node.get("Alias", on))
    on = on if alias == on or not on else f"{on} as {alias}"
    index = str(node.get("Index Name", ""))
    return f"{on or 'index'} by {index}" if index else on


def _details(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in node.items():
        if name in IN_HEADING or value in (0, False, None, "") or isinstance(value, Mapping):
            continue
        words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        found.append((name, words))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# The most that is shown: rows of a result, characters of a value, and characters of a page. Each
# cell counts as at least MIN_CELL_LENGTH characters, because even a short one takes time to draw.
MAX_ROWS, MAX_VALUE_LENGTH, MAX_PAGE_LENGTH, MIN_CELL_LENGTH = 500, 1000, 400_000, 20
# Written before each statement to be explained.
EXPLAIN, ANALYZE = "EXPLAIN (FORMAT JSON) ", "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
WORD = re.compile(r"\w+|\S|$")


@dataclass(frozen=True)
class Cell:
    text: str
    is_null: bool = False
    is_number: bool = False
    # The number of characters, or bytes in a page of a table, of the value if `text` is only its
    # beginning; otherwise 0.
    whole: int = 0
    # The name of the column of a table.
    column: str = ""


@dataclass(frozen=True)
class ShownResult:
    command: str
    row_count: int | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    # How many rows were received. If there are many, `rows` has only the first ones.
    received: int
    # The statement of this result, if there are several.
    statement: str = ""
    # How many characters of the page it takes.
    size: int = 0
    notices: Sequence[Notice] = ()
    notices_left_out: int = 0
    # The plan in JSON, as received; "" if the result is no plan.
    plan_json: str = ""

    @property
    def is_cut(self) -> bool:
        return len(self.rows) < self.received

    @property
    def is_plan(self) -> bool:
        return [column.name for column in self.columns] == ["QUERY PLAN"]

    @cached_property
    def plan_tree(self) -> Plan | None:
        return read_plan(self.plan_json) if self.plan_json else None

    @property
    def plan(self) -> str:
        return "\n".join(row[0].text for row in self.rows if row)


def shown_results(results: Sequence[Result], statements: Sequence[str] = ()) -> list[ShownResult]:
    """Return what is shown of each result. Earlier results use up the page's characters first."""
    found, room = [], MAX_PAGE_LENGTH
    for result, statement in zip_longest(results, statements[: len(results)], fillvalue=""):
        assert isinstance(result, Result)
        found.append(_shown_result(result, statement, room=room))
        room -= found[-1].size
    return found


def _shown_result(result: Result, statement: str, *, room: int) -> ShownResult:
    is_number = [column.is_number for column in result.columns]
    rows: list[list[Cell]] = []
    size = MIN_CELL_LENGTH * len(result.columns)
    for row in result.rows[:MAX_ROWS]:
        cells = [_cell(*pair) for pair in zip(row, is_number, strict=False)]
        size += sum(max(MIN_CELL_LENGTH, len(cell.text)) for cell in cells)
        if size > room:
            break
        rows.append(cells)
    return ShownResult(
        result.command,
        result.row_count,
        result.columns,
        rows,
        len(result.rows),
        statement,
        size,
        result.notices,
        result.notices_left_out,
        _plan_json(result),
    )


def _plan_json(result: Result) -> str:
    columns = [(column.name, column.type) for column in result.columns]
    if columns != [("QUERY PLAN", "json")] or len(result.rows) != 1:
        return ""
    (value,) = result.rows[0]
    return value if isinstance(value, str) else ""


def _cell(value: str | None, is_number: bool) -> Cell:
    if value is None:
        return Cell("NULL", is_null=True)
    text = value if isinstance(value, str) else json.dumps(value)
    is_long = len(text) > MAX_VALUE_LENGTH
    return Cell(text[:MAX_VALUE_LENGTH], is_number=is_number, whole=len(text) if is_long else 0)


@dataclass(frozen=True)
class Mark:
    """The position of an error in what was typed: its line, in three parts."""

    line: int
    before: str
    marked: str
    after: str
    # The range, in characters of what was typed.
    start: int
    end: int


def mark_of(
    failure: SqlFailed, typed: str, statements: Sequence[Statement], *, prefix: str = ""
) -> Mark | None:
    """Return the position of the error; None if Postgres gives none, or one outside what was
    typed."""
    place = failure.position - 1 - len(prefix)
    if not 0 <= failure.statement < len(statements) or failure.position < 1 or place < 0:
        return None
    start = statements[failure.statement].start + place
    if start > len(typed):
        return None
    found = WORD.search(typed, start)
    end = found.end() if found and found.start() == start else min(start + 1, len(typed))
    begin = typed.rfind("\n", 0, start) + 1
    line_end = typed.find("\n", start)
    line = typed[begin : line_end if line_end >= 0 else len(typed)].rstrip("\r")
    return Mark(
        line=typed.count("\n", 0, start) + 1,
        before=line[: start - begin],
        marked=line[start - begin : end - begin],
        after=line[end - begin :],
        start=start,
        end=end,
    )
