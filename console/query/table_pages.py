"""SQL for the rows of a table: pages by keyset, filters, and changes with their values written out.

A page begins after a row, which is named by its values in the sorted column and in the key. So the
thousandth page costs as much as the first.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from console.query.schema_tree import Table, quoted
from console.query.sql_over_http import Query, Result

# The most rows of a page.
PAGE_ROWS = 50
# The key is the primary one or, if there is none, a unique one of columns that are never NULL.
DESCRIBE = """\
SELECT a.attname, pg_catalog.format_type(a.atttypid, -1), a.attnotnull,
  CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.attidentity = 'a' THEN 'identity' END,
  place.ordinality, c.relkind, c.reltuples::bigint
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
LEFT JOIN LATERAL (
  SELECT i.indkey, i.indnkeyatts FROM pg_catalog.pg_index i
  WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND NOT EXISTS (
      SELECT FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY AS one (attnum, ordinality)
      JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND b.attnum = one.attnum
      WHERE one.ordinality <= i.indnkeyatts AND NOT b.attnotnull)
  ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1
) AS k ON true
LEFT JOIN LATERAL pg_catalog.unnest(k.indkey) WITH ORDINALITY AS place (attnum, ordinality)
  ON place.attnum = a.attnum AND place.ordinality <= k.indnkeyatts
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""
# Types without an equality operator.
NOT_COMPARED = frozenset({"json", "xml", "jsonpath", "point", "polygon", "path", "line"})
OPERATORS = {
    "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "has": "contains", "null": "is NULL", "some": "is not NULL",
}  # fmt: skip


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    is_nullable: bool = True
    # True if Postgres computes its values.
    is_generated: bool = False
    # True if it is GENERATED ALWAYS AS IDENTITY, and so takes values from COPY and imports only.
    is_identity: bool = False

    @property
    def quoted(self) -> str:
        return quoted(self.name)


CTID = TableColumn("ctid", "tid", is_nullable=False, is_generated=True)


@dataclass(frozen=True)
class Description:
    table: Table
    columns: Sequence[TableColumn]
    # The columns that identify a row, in order; none for a view without them.
    key: Sequence[TableColumn]
    # The planner's estimate; -1 if the table was never analyzed.
    estimated_rows: int

    @property
    def is_editable(self) -> bool:
        return bool(self.key) and CTID not in self.key

    def column(self, name: str) -> TableColumn | None:
        return next((one for one in self.columns if one.name == name), None)


@dataclass(frozen=True)
class Filter:
    column: TableColumn
    operator: str
    value: str


@dataclass(frozen=True)
class PageOf:
    """Which page of a table: in which order, and after or before which row."""

    sort: TableColumn | None = None
    is_descending: bool = False
    only: Filter | None = None
    # The row's values of `sort`, if there is one, and of the key.
    behind: Sequence[str | None] = ()
    # The page is before that row.
    is_backward: bool = False


def describe(table: Table) -> Query:
    return Query(DESCRIBE, (table.schema, table.name))


def read_description(table: Table, result: Result) -> Description | None:
    """Return what `DESCRIBE` answers; None if there is no such table."""
    rows = [[str(value or "") for value in row] for row in result.rows if len(row) == 7]
    if not rows:
        return None
    columns = [
        TableColumn(row[0], row[1], row[2] != "t", bool(row[3]), row[3] == "identity")
        for row in rows
    ]
    placed = [(int(row[4]), column) for row, column in zip(rows, columns, strict=True) if row[4]]
    key = [column for _, column in sorted(placed, key=lambda one: one[0])]
    kind, about = rows[0][5:]
    if not key and kind in ("r", "m"):
        key = [CTID]
    return Description(table, columns, key, int(about))


def page_query(described: Description, page: PageOf, *, rows: int) -> Query:
    """Return the query for at most `rows` rows of a page. Each row has the values of the columns
    and then those that name it: of the sorted column, if there is one, and of the key. A page
    before a row comes in reverse."""
    ordered = [*([page.sort] if page.sort else []), *described.key]
    goes_up = page.is_descending == page.is_backward
    parameters: list[str] = []

    def value(text: str, column: TableColumn) -> str:
        parameters.append(text)
        return f"${len(parameters)}::{column.type}"

    where = []
    if page.only:
        where.append(_condition(page.only, parameters))
    if page.behind and described.key:
        where.append(_behind(page, described.key, goes_up, value))
    direction = "" if goes_up else " DESC"
    order = ", ".join(f"{column.quoted}{direction}" for column in ordered)
    shown = ", ".join(column.quoted for column in (*described.columns, *ordered))
    return Query(
        f"SELECT {shown} FROM {described.table.quoted}"  # noqa: S608 # quoted
        + (f" WHERE {' AND '.join(where)}" if where else "")
        + (f" ORDER BY {order}" if order else "")
        + (f" LIMIT {rows}" if rows else ""),
        parameters,
    )


def _condition(only: Filter, parameters: list[str]) -> str:
    column = only.column.quoted
    if only.operator in ("null", "some"):
        return f"{column} IS {'NOT ' if only.operator == 'some' else ''}NULL"
    parameters.append(only.value)
    if only.operator == "has":
        return f"pg_catalog.strpos(lower({column}::text), lower(${len(parameters)})) > 0"
    return f"{column} {OPERATORS[only.operator]} ${len(parameters)}::{only.column.type}"


def _behind(page: PageOf, key: Sequence[TableColumn], goes_up: bool, value: object) -> str:
    """Return the condition for the rows after the page's row, in the direction of reading. NULL
    comes after every value in ascending order, and before every value in descending order."""
    assert callable(value)
    sign = ">" if goes_up else "<"

    def is_behind(columns: Sequence[TableColumn], values: Sequence[str | None]) -> str:
        names = ", ".join(column.quoted for column in columns)
        given = ", ".join(value(text or "", one) for one, text in zip(columns, values, strict=True))
        return f"({names}) {sign} ({given})"

    if page.sort is None:
        return is_behind(key, page.behind)
    sort, (first, *rest) = page.sort, page.behind
    if not sort.is_nullable:
        return is_behind([sort, *key], page.behind)
    name, among_equals = sort.quoted, is_behind(key, rest)
    if first is None:
        other = f"{name} IS NULL AND " if goes_up else f"{name} IS NOT NULL OR "
        return f"({other}{among_equals})"
    after = value(first, sort)
    nulls = f" OR {name} IS NULL" if goes_up else ""
    return f"({name} {sign} {after} OR ({name} = {after} AND {among_equals}){nulls})"


def read_row_name(text: str, length: int) -> list[str | None] | None:
    """Read the values that name a row in an address; None if they are invalid."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(values, list) and len(values) == length
    return values if is_list and all(v is None or isinstance(v, str) for v in values) else None


def row_query(described: Description, key: Sequence[str | None]) -> Query:
    names = ", ".join(column.quoted for column in described.columns)
    return Query(
        f"SELECT {names} FROM {described.table.quoted} WHERE {_is_row(described, key)}"  # noqa: S608
    )


def update_sql(
    described: Description,
    key: Sequence[str | None],
    changed: Sequence[tuple[TableColumn, str | None, str | None]],
) -> str:
    """Return the statement that changes a row. `changed` has each column with its old and its new
    value. The statement changes nothing if a column has another value than the old one by then."""
    sets = ", ".join(f"{column.quoted} = {literal(new)}" for column, _, new in changed)
    still = [_is(column, before) for column, before, _ in changed]
    where = " AND ".join([_is_row(described, key), *still])
    return f"UPDATE {described.table.quoted} SET {sets} WHERE {where}"  # noqa: S608 # quoted


def delete_sql(described: Description, key: Sequence[str | None]) -> str:
    """Return the statement that deletes a row, whatever its other values are by then."""
    return f"DELETE FROM {described.table.quoted} WHERE {_is_row(described, key)}"  # noqa: S608


def _is_row(described: Description, key: Sequence[str | None]) -> str:
    return " AND ".join(_is(*pair) for pair in zip(described.key, key, strict=True))


def _is(column: TableColumn, value: str | None) -> str:
    if value is None:
        return f"{column.quoted} IS NULL"
    as_text = "::text" if column.type in NOT_COMPARED else ""
    return f"{column.quoted}{as_text} = {literal(value)}"


def literal(value: str | None) -> str:
    """Return the value in SQL, whatever the session's `standard_conforming_strings`."""
    if value is None:
        return "NULL"
    doubled = value.replace("'", "''")
    escaped = doubled.replace("\\", "\\\\")
    return f"'{doubled}'" if escaped == doubled else f"E'{escaped}'"


def insert_sql(described: Description, given: Sequence[tuple[TableColumn, str | None]]) -> str:
    """Return the statement that adds a row with these values, and else with the defaults."""
    names = ", ".join(column.quoted for column, _ in given)
    values = ", ".join(literal(value) for _, value in given)
    what = f"({names}) VALUES ({values})" if given else "DEFAULT VALUES"
    return f"INSERT INTO {described.table.quoted} {what}"  # quoted
