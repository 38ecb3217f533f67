"""What the catalog says, by SQL with the rights of the chosen role: the tree of schemas, tables and
columns; and of one table its types, what identifies a row, and what may be changed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from console.api.bounded_http import read_json
from console.api.fields import isolated
from console.query.pg_types import NUMBERS
from console.query.sql_over_http import Query, Result
from console.turns import in_turns

# The most tables that are listed, and the most columns of all of them together. A table itself has
# at most MAX_TABLE_COLUMNS. Whatever answers in place of Postgres may claim more, and longer names.
MAX_TABLES, MAX_COLUMNS, MAX_TABLE_COLUMNS, MAX_NAME_LENGTH = 1000, 20_000, 1600, 255
COLUMNS = """(
  SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
    a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
  FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"""
# One more than are listed, to know whether there are more.
LISTED = f"""\
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
ORDER BY n.nspname, c.relname LIMIT {MAX_TABLES + 1}"""
TABLES = Query(f"SELECT n.nspname, c.relname, c.relkind, {COLUMNS} {LISTED}")
TABLE_NAMES = Query(f"SELECT n.nspname, c.relname, c.relkind, NULL {LISTED}")
KINDS = {"v": "view", "m": "materialized view", "f": "foreign table", "p": "partitioned"}


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    # "" for an ordinary table.
    kind: str = ""
    # The names of the columns, each with that of its type.
    columns: Sequence[tuple[str, str]] = ()

    @property
    def value(self) -> str:
        """The table in an address or a form."""
        return json.dumps([self.schema, self.name], ensure_ascii=False)

    @property
    def quoted(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def read_table(value: str) -> Table | None:
    """Read a table's `value`; None if it is invalid."""
    try:
        schema, name = read_json(value.encode())
    except (ValueError, TypeError, RecursionError):
        return None
    is_valid = isinstance(schema, str) and isinstance(name, str) and "\0" not in schema + name
    return Table(isolated(schema), isolated(name)) if is_valid else None


def listed_tables(result: Result) -> dict[str, Any]:
    """Return the context of a list of tables: those of `TABLES`, by schema, and the numbers of
    tables and columns if there are more. What cannot be read is left out."""
    found: dict[str, list[Table]] = {}
    room, is_cut = MAX_COLUMNS, False
    for row in in_turns(result.rows[:MAX_TABLES]):
        if len(row) == 4 and _is_name(row[0]) and _is_name(row[1]):
            columns = _columns(row[3])
            is_cut = is_cut or len(columns) > room
            kind = KINDS.get(str(row[2]), "")
            table = Table(isolated(row[0]), isolated(row[1]), kind, columns[:room])
            room -= len(table.columns)
            found.setdefault(row[0], []).append(table)
    return {
        "schemas": list(found.items()),
        "most_tables": MAX_TABLES if len(result.rows) > MAX_TABLES else 0,
        "most_columns": MAX_COLUMNS if is_cut else 0,
    }


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_NAME_LENGTH


def _columns(text: str | None) -> list[tuple[str, str]]:
    try:
        read = read_json((text or "[]").encode())
        return [(isolated(str(name)), str(type_)) for name, type_ in in_turns(read)]
    except (ValueError, TypeError, RecursionError):
        return []


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


DESCRIBE = Path(__file__).with_name("describe_table.sql").read_text()
# The names of Postgres's own operators of a B-tree.
USUAL = ["<", "<=", "=", ">=", ">"]


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    # The type that parameters are cast to: for a domain, the one below it. A cast to a domain of
    # varchar(5) would cut the value.
    base: str
    is_nullable: bool
    # True if Postgres computes its values.
    is_generated: bool
    # True if it is GENERATED ALWAYS AS IDENTITY, and so takes values from COPY and imports only.
    is_identity: bool
    # True if its values may have any length.
    is_long: bool
    # True if `=` holds only between equal texts.
    is_exact: bool
    # Those of its order, as in USUAL; none if rows cannot be sorted by the column.
    operators: Sequence[str]

    @property
    def is_number(self) -> bool:
        return self.type in NUMBERS

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    @property
    def compared(self) -> str:
        """The column in comparisons. There are no operators for domains of some types."""
        return self.quoted if self.type == self.base else f"{self.quoted}::{self.base}"

    def operator(self, sign: str) -> str:
        """Return the operator of the type's order that this sign stands for."""
        return self.operators[USUAL.index(sign)] if sign in USUAL and self.operators else sign


def _place(name: str, type_: str) -> TableColumn:
    return TableColumn(name, type_, type_, False, True, False, False, True, USUAL)


# Where a row is; within the table, or the partition, that holds it.
CTID = _place("ctid", "tid")
PLACES = {"": [], "ctid": [CTID], "tableoid": [_place("tableoid", "oid"), CTID]}


@dataclass(frozen=True)
class Description:
    table: Table
    columns: Sequence[TableColumn]
    # The columns that identify a row, in order; none for a view without them.
    key: Sequence[TableColumn]
    # The planner's estimate; -1 if the table, or one below it, was never analyzed.
    estimated_rows: int
    is_insertable: bool
    is_updatable: bool
    # A rule may do something else than the statement says, with another number of rows.
    has_rules: bool

    @property
    def is_editable(self) -> bool:
        return self.is_updatable and bool(self.key) and CTID not in self.key

    def column(self, name: str) -> TableColumn | None:
        return next((one for one in self.columns if one.name == name), None)


def describe(table: Table) -> Query:
    return Query(DESCRIBE, (table.schema, table.name))


def read_description(table: Table, result: Result) -> Description | None:
    """Return what `DESCRIBE` answers; None if there is no such table, or it has no columns."""
    if not result.rows:
        return None
    rows = result.rows[:MAX_TABLE_COLUMNS]
    found = [read_json((row[0] or "").encode()) for row in rows]
    columns = [TableColumn(**one | {"name": isolated(one["name"])}) for one in found]
    in_key = [(int(row[1]), n) for n, row in enumerate(rows) if row[1]]
    key = [columns[n] for _, n in sorted(in_key)]
    _, _, place, about = rows[0]
    more = read_json((about or "").encode())
    return Description(table, columns, key or PLACES[place or ""], **more)
