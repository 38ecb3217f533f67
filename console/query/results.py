"""What the query page shows: results, shortened for reading; the position of an error; and the tree
of a plan in JSON. Whatever the server sends must do no harm: it is not trusted, and everybody waits
while a page is made."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from console.api.bounded_http import read_json
from console.api.fields import NUMBER_LIMIT
from console.query.sql_over_http import Column, Result, SqlFailed
from console.query.statements import Statement
from console.turns import in_turns, let_others

# The most levels of a tree, the most steps and details of all trees of a page, and characters of a
# plan. A plan beyond these is shown as text.
MAX_DEPTH, MAX_PLAN_PARTS, MAX_PLAN_LENGTH = 60, 5_000, 2 << 20
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
    # How many steps and details it has.
    parts: int


@dataclass
class _Room:
    """How many more steps and details may be shown."""

    left: int

    def take(self, parts: int) -> None:
        """Raises ValueError if there is no room for so many."""
        self.left -= parts
        if self.left < 0:
            raise ValueError("too many steps and details")


def read_plan(text: str, *, most_parts: int = MAX_PLAN_PARTS) -> Plan | None:
    """Read a plan; None if it is none, too deep, or of more steps and details than `most_parts`."""
    room = _Room(most_parts)
    if len(text) > MAX_PLAN_LENGTH:
        return None
    try:
        whole = read_json(text.encode())[0]
        plan = whole["Plan"]
        has_run = "Actual Total Time" in plan
        root = _step(plan, max(_total(plan, has_run=has_run), 1e-9), room, has_run=has_run)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    spent = [
        f"{words} {_number(whole[name]):.2f} ms"
        for name, words in (("Planning Time", "planned in"), ("Execution Time", "executed in"))
        if name in whole
    ]
    times = ", ".join(spent) if has_run else ""
    return Plan(root, "time" if has_run else "cost", times, most_parts - room.left)


def _step(
    node: Mapping[str, Any],
    whole: float,
    room: _Room,
    *,
    has_run: bool,
    level: int = 1,
    is_limited: bool = False,
) -> Step:
    let_others()
    if level > MAX_DEPTH:
        raise ValueError("too deep")
    details = list(islice(_details(node), room.left + 1))
    room.take(1 + len(details))
    plans = node.get("Plans", [])[: room.left + 1]
    below = [one for one in plans if isinstance(one, Mapping)]
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
        details=details,
        steps=[
            _step(one, whole, room, has_run=has_run, level=level + 1, is_limited=is_limited)
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


def _details(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in in_turns(node.items()):
        if name in IN_HEADING or value in (0, False, None, "") or isinstance(value, Mapping):
            continue
        words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name, words


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and abs(value) < NUMBER_LIMIT
    return float(value) if is_number else 0.0


# The most that is shown: rows of a result, characters of a value, and characters of a page. Each
# cell counts as at least MIN_CELL_LENGTH characters, because even a short one takes time to draw.
MAX_ROWS, MAX_VALUE_LENGTH, MAX_PAGE_LENGTH, MIN_CELL_LENGTH = 500, 1000, 400_000, 20
# The columns that are shown of each result, also if the page has no room for a row of it.
MIN_COLUMNS = 20
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
    of: Result
    # If there are many, only the first ones.
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    # The statement of this result, if there are several.
    statement: str
    # How many characters of the page it takes.
    size: int
    # The tree of a plan in JSON; None if the result is none, or if it is shown as text.
    plan_tree: Plan | None

    @property
    def received(self) -> int:
        return len(self.of.rows)

    @property
    def is_cut(self) -> bool:
        return len(self.rows) < self.received

    @property
    def is_plan(self) -> bool:
        return [column.name for column in self.columns] == ["QUERY PLAN"]

    @property
    def plan(self) -> str:
        cells = [row[0] for row in self.rows if row]
        return "\n".join(f"{c.text}… ({c.whole} characters)" if c.whole else c.text for c in cells)


def shown_results(results: Sequence[Result], statements: Sequence[str] = ()) -> list[ShownResult]:
    """Return what is shown of each result. Earlier results use up the page's characters first."""
    found, room, parts = [], MAX_PAGE_LENGTH, MAX_PLAN_PARTS
    pairs = zip_longest(results, statements[: len(results)], fillvalue="")
    for result, statement in in_turns(pairs):
        assert isinstance(result, Result)
        shown = _shown_result(result, statement, room=room, most_parts=parts)
        found.append(shown)
        room -= shown.size
        parts -= shown.plan_tree.parts if shown.plan_tree else 0
    return found


def _shown_result(result: Result, statement: str, *, room: int, most_parts: int) -> ShownResult:
    columns = result.columns[: max(MIN_COLUMNS, room // MIN_CELL_LENGTH)]
    is_number = [column.is_number for column in columns]
    rows: list[list[Cell]] = []
    size = sum(max(MIN_CELL_LENGTH, len(column.name)) for column in columns)
    for row in in_turns(result.rows[:MAX_ROWS]):
        cells = [_cell(*pair) for pair in zip(row, is_number, strict=False)]
        size += sum(max(MIN_CELL_LENGTH, len(cell.text)) for cell in cells)
        if size > room:
            break
        rows.append(cells)
    plan = read_plan(_plan_json(result), most_parts=most_parts)
    return ShownResult(result, columns, rows, statement, size, plan)


def _plan_json(result: Result) -> str:
    """Return the plan in JSON, as received; "" if the result is none."""
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
