"""What the query page shows: results, shortened for reading, and the position of an error."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from console.query.sql_over_http import Column, Query, Result, SqlFailed
from console.query.statements import Statement

# The most that is shown: rows of a result, characters of a value, and characters of a page. Each
# cell counts as at least LEAST_CELL characters, because even a short one takes time to draw.
MOST_ROWS, LONGEST_VALUE, MOST_CHARACTERS, LEAST_CELL = 500, 1000, 400_000, 20
EXPLAIN = "EXPLAIN "
WORD = re.compile(r"\w+|\S|$")


@dataclass(frozen=True)
class Cell:
    text: str
    is_null: bool = False
    is_number: bool = False
    # The number of characters, if the text is only the first of them; otherwise 0.
    whole: int = 0


@dataclass(frozen=True)
class ShownResult:
    command: str
    row_count: int | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    # How many rows were received. `rows` are fewer if only the first are shown.
    came: int
    # The statement of this result, if there are several.
    statement: str = ""
    # How many characters of the page it takes.
    size: int = 0

    @property
    def is_cut(self) -> bool:
        return len(self.rows) < self.came

    @property
    def is_plan(self) -> bool:
        return [column.name for column in self.columns] == ["QUERY PLAN"]

    @property
    def plan(self) -> str:
        return "\n".join(row[0].text for row in self.rows if row)


def all_shown(results: Sequence[Result], statements: Sequence[str] = ()) -> list[ShownResult]:
    """Return what is shown of each result. Earlier ones use up the page's room first."""
    found, room = [], MOST_CHARACTERS
    for result, statement in zip_longest(results, statements[: len(results)], fillvalue=""):
        assert isinstance(result, Result)
        found.append(_shown(result, statement, room=room))
        room -= found[-1].size
    return found


def _shown(result: Result, statement: str, *, room: int) -> ShownResult:
    is_number = [column.is_number for column in result.columns]
    rows: list[list[Cell]] = []
    size = LEAST_CELL * len(result.columns)
    for row in result.rows[:MOST_ROWS]:
        cells = [_cell(*pair) for pair in zip(row, is_number, strict=False)]
        size += sum(max(LEAST_CELL, len(cell.text)) for cell in cells)
        if size > room:
            break
        rows.append(cells)
    return ShownResult(
        result.command, result.row_count, result.columns, rows, len(result.rows), statement, size
    )


def _cell(value: str | None, is_number: bool) -> Cell:
    if value is None:
        return Cell("NULL", is_null=True)
    text = value if isinstance(value, str) else json.dumps(value)
    is_long = len(text) > LONGEST_VALUE
    return Cell(text[:LONGEST_VALUE], is_number=is_number, whole=len(text) if is_long else 0)


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
    """Return the position of the error; None if Postgres gives none, or none in what was typed."""
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


# The table browser. It uses the role's own rights, by SQL like any other.

TABLES = Query("""\
SELECT n.nspname, c.relname, c.relkind
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
ORDER BY n.nspname, c.relname LIMIT 1000""")
COLUMNS = """\
SELECT a.attname AS "column", pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
  CASE WHEN a.attnotnull THEN 'no' ELSE 'yes' END AS nullable,
  pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS "default"
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""
FIRST_ROWS = 20
KINDS = {"v": "view", "m": "materialized view", "f": "foreign table", "p": "partitioned"}


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    # "" for an ordinary table.
    kind: str

    @property
    def value(self) -> str:
        """The value of the table's button."""
        return json.dumps([self.schema, self.name])


def read_table(value: str) -> Table | None:
    """Read the value of a table's button; None if it is invalid."""
    try:
        schema, name = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return None
    is_one = isinstance(schema, str) and isinstance(name, str) and "\0" not in schema + name
    return Table(schema, name, "") if is_one else None


def look_at(table: Table) -> list[Query]:
    """Return the queries for a table's columns and for its first rows."""
    name = f"{_quoted(table.schema)}.{_quoted(table.name)}"
    return [
        Query(COLUMNS, (table.schema, table.name)),
        Query(f"SELECT * FROM {name} LIMIT {FIRST_ROWS}"),  # noqa: S608 # quoted
    ]


def by_schema(result: Result) -> list[tuple[str, list[Table]]]:
    found: dict[str, list[Table]] = {}
    for row in result.rows:
        if len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], str):
            found.setdefault(row[0], []).append(Table(row[0], row[1], KINDS.get(str(row[2]), "")))
    return list(found.items())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
