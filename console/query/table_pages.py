"""SQL for the rows of a table: pages by keyset, filters, and changes with their values written out.

A page begins after a row, which is named by its values in the sorted column and in the key. So the
thousandth page costs as much as the first. Names are in addresses: a long value is named by its
digest there."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.api.bounded_http import read_json
from console.query.sql_over_http import Query
from console.query.table_description import MAX_TABLE_COLUMNS, USUAL, Description, TableColumn

OPERATORS = {
    "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "has": "contains", "null": "is NULL", "some": "is not NULL",
}  # fmt: skip
# Bytes of the list that names a row.
MAX_ROW_NAME_BYTES = 500


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

    def order(self, described: Description) -> list[TableColumn]:
        return [*([self.sort] if self.sort else []), *described.key]


def page_query(described: Description, page: PageOf, *, rows: int, longest: int = 0) -> Query:
    """Return the query for at most `rows` rows of a page; all if it is 0. A page before a row comes
    in reverse. Each row has the values of the columns and then those of `page.order`. With
    `longest`, values are cut to so many characters; then come the names of the row in this order
    and by its key, and the sizes of the values."""
    ordered = page.order(described)
    goes_up = page.is_descending == page.is_backward
    parameters: list[str] = []
    where = []
    if page.only:
        where.append(_condition(page.only, parameters))
    if page.behind and described.key:
        where.append(_behind(page, described.key, goes_up, parameters))
    direction = "" if goes_up else " DESC"
    # Without `this`, it might name a result, as "left" for a column that is cut.
    order = ", ".join(f"this.{column.quoted}{direction}" for column in ordered)
    shown = [column.quoted for column in (*described.columns, *ordered)]
    if longest:
        shown = [_text_prefix(column, longest) for column in described.columns]
        shown += [_name(ordered), _name(described.key), _sizes(described.columns)]
    return Query(
        f"SELECT {', '.join(shown)} FROM {described.table.quoted} AS this"  # noqa: S608 # quoted
        + (f" WHERE {' AND '.join(where)}" if where else "")
        + (f" ORDER BY {order}" if order else "")
        + (f" LIMIT {rows}" if rows else ""),
        parameters,
    )


def row_query(
    described: Description,
    columns: Sequence[TableColumn],
    order: Sequence[TableColumn],
    name: str,
    *,
    longest: int,
) -> Query:
    """Return the query for the values of `columns` in the row whose values of `order` this name
    has, and for their sizes. A value of more than `longest` bytes is NULL."""
    parameters: list[str] = []
    if values := read_row_name(name, len(order)):
        where = [
            f"{column.quoted} IS NOT DISTINCT FROM NULL" if value is None
            else f"{column.compared} {column.operator('=')} {_given(column, value, parameters)}"
            for column, value in zip(order, values, strict=True)
        ]  # fmt: skip
    else:
        where, parameters = [f"{_name(order)} = $1"], [name]
    shown = ", ".join(
        f"CASE WHEN {_size(one)} > {longest} THEN NULL ELSE {one.quoted} END" for one in columns
    )
    # Were there two such rows, neither would be meant.
    return Query(
        f"SELECT {shown}, {_sizes(columns)} FROM {described.table.quoted} "  # noqa: S608 # quoted
        f"WHERE {' AND '.join(where)} LIMIT 2",
        parameters,
    )


def _text(column: TableColumn) -> str:
    """Return the value as Postgres writes it; a cast to text writes some types in another way."""
    if column.base in ("text", "character varying"):
        return column.quoted
    # IS NOT NULL is false for a composite value with a field that is NULL.
    text = f"pg_catalog.format('%s', {column.quoted})"
    return f"CASE WHEN {column.quoted} IS DISTINCT FROM NULL THEN {text} END"


def _size(column: TableColumn) -> str:
    """Return the number of bytes of the value's text."""
    if column.base == "bytea":
        return f"pg_catalog.octet_length({column.quoted})::bigint * 2 + 2"
    return f"pg_catalog.octet_length({_text(column)})"


def _sizes(columns: Sequence[TableColumn]) -> str:
    return f"ARRAY[{', '.join(_size(column) for column in columns)}]::bigint[]"


def read_sizes(text: str | None) -> list[int]:
    """Return the sizes that a query has selected: the bytes of each value as Postgres writes it."""
    sizes = (text or "").strip("{}").split(",", MAX_TABLE_COLUMNS)
    return [int(size) if size.isdecimal() and len(size) < 20 else 0 for size in sizes]


def _text_prefix(column: TableColumn, longest: int) -> str:
    if not column.is_long:
        return column.quoted
    if column.base == "bytea":
        # Postgres reads no more of the value than this.
        start = f"pg_catalog.substr({column.quoted}, 1, {longest // 2})"
        return f"'\\x' || pg_catalog.encode({start}, 'hex')"
    return f"pg_catalog.left({_text(column)}, {longest})"


def _name(columns: Sequence[TableColumn]) -> str:
    """Return what names a row by its values in these columns: a list of them or, as addresses
    cannot be longer, its digest."""
    values = f"pg_catalog.json_build_array({', '.join(map(_text, columns))})::text"
    digest = f"pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to({values}, 'UTF8')), 'hex')"
    return (
        f"CASE WHEN pg_catalog.octet_length({values}) > {MAX_ROW_NAME_BYTES} THEN {digest} "
        f"ELSE {values} END"
    )


def _given(column: TableColumn, value: str | None, parameters: list[str]) -> str:
    parameters.append(value or "")
    return f"${len(parameters)}::{column.base}"


def _condition(only: Filter, parameters: list[str]) -> str:
    column, sign = only.column, OPERATORS[only.operator]
    if only.operator in ("null", "some"):
        return f"{column.quoted} IS {'' if only.operator == 'some' else 'NOT '}DISTINCT FROM NULL"
    if only.operator == "has":
        parameters.append(only.value)
        searched = f'pg_catalog.lower({_text(column)}) COLLATE "C"'
        return f"pg_catalog.strpos({searched}, pg_catalog.lower(${len(parameters)})) > 0"
    if not column.operators and only.operator in ("eq", "ne"):
        # The type has no `=`, or one that compares something else, as that of boxes does.
        parameters.append(only.value)
        return f"{_text(column)} {sign} ${len(parameters)}"
    return f"{column.compared} {column.operator(sign)} {_given(column, only.value, parameters)}"


def _behind(page: PageOf, key: Sequence[TableColumn], goes_up: bool, parameters: list[str]) -> str:
    """Return the condition for the rows after the page's row, in the direction of reading. NULL
    comes after every value in ascending order, and before every value in descending order."""
    sign = ">" if goes_up else "<"

    def is_behind(columns: Sequence[TableColumn], values: Sequence[str | None]) -> str:
        if all(column.operators == USUAL for column in columns):
            names = ", ".join(column.compared for column in columns)
            row = ", ".join(_given(*pair, parameters) for pair in zip(columns, values, strict=True))
            return f"({names}) {sign} ({row})"
        # A comparison of rows has one operator for all columns.
        (column, *others), (value, *rest) = columns, values
        after = f"{column.compared} {column.operator(sign)} {_given(column, value, parameters)}"
        if not others:
            return after
        among = f"{column.compared} {column.operator('=')} {_given(column, value, parameters)}"
        return f"({after} OR ({among} AND {is_behind(others, rest)}))"

    if page.sort is None:
        return is_behind(key, page.behind)
    sort, (first, *rest) = page.sort, page.behind
    if not sort.is_nullable:
        return is_behind([sort, *key], page.behind)
    name = sort.quoted
    if first is None:
        among_equals = is_behind(key, rest)
        is_null = "IS NOT DISTINCT FROM NULL AND" if goes_up else "IS DISTINCT FROM NULL OR"
        return f"({name} {is_null} {among_equals})"
    ends = f" OR {name} IS NOT DISTINCT FROM NULL" if goes_up else ""
    return f"({is_behind([sort, *key], page.behind)}{ends})"


def read_row_name(text: str, length: int) -> list[str | None] | None:
    """Read the values that name a row in an address; None if they are invalid."""
    try:
        values = read_json(text.encode())
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(values, list) and len(values) == length
    return values if is_list and all(v is None or isinstance(v, str) for v in values) else None


# Columns, each with the old and the new value.
Changes = Sequence[tuple[TableColumn, str | None, str | None]]


def unchanged_row_condition(
    described: Description, key: Sequence[str | None], changed: Changes
) -> str:
    """Return the condition for the row of this key. It is false if a column that is `changed` has
    another value than the old one by then."""
    still = [_is(column, before) for column, before, _ in changed]
    return " AND ".join([_is_row(described, key), *still])


def update_sql(described: Description, changed: Changes, where: str) -> str:
    sets = ", ".join(f"{column.quoted} = {literal(new)}" for column, _, new in changed)
    return f"UPDATE {described.table.quoted} SET {sets} WHERE {where}"  # noqa: S608 # quoted


def _is_row(described: Description, key: Sequence[str | None]) -> str:
    """Compare by the order of the key, so that Postgres uses its index."""
    return " AND ".join(
        f"{one.compared} {one.operator('=')} {literal(value)}"
        # Some types, and operators that are named in full, need the type.
        + ("" if one.is_exact else f"::{one.base}")
        for one, value in zip(described.key, key, strict=True)
    )


def _is(column: TableColumn, value: str | None) -> str:
    """Compare the value's whole text, as the type's `=` may hold between different ones."""
    if value is None:
        # IS NULL is true for a composite value whose fields are NULL.
        return f"{column.quoted} IS {'' if column.is_exact else 'NOT DISTINCT FROM '}NULL"
    if column.is_exact:
        return f"{column.quoted} = {literal(value)}"
    # The text of NULL is empty.
    given = "" if value else f"{column.quoted} IS DISTINCT FROM NULL AND "
    return f"{given}pg_catalog.format('%s', {column.quoted}) COLLATE \"C\" = {literal(value)}"


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
