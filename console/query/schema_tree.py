"""The tree of schemas, tables and columns beside the query page. It is read by SQL with the rights
of the chosen role."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from console.api.fields import isolated
from console.query.sql_over_http import Query, Result

# The most tables that are listed.
MAX_TABLES = 1000
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
        """The table in SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def read_table(value: str) -> Table | None:
    """Read a table's `value`; None if it is invalid."""
    try:
        schema, name = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return None
    is_valid = isinstance(schema, str) and isinstance(name, str) and "\0" not in schema + name
    return Table(isolated(schema), isolated(name)) if is_valid else None


def listed_tables(result: Result) -> dict[str, Any]:
    """Return the context of a list of tables: those of `TABLES`, by schema, and their number if
    there are more."""
    is_cut = len(result.rows) > MAX_TABLES
    return {"schemas": by_schema(result), "most_tables": MAX_TABLES if is_cut else 0}


def by_schema(result: Result) -> list[tuple[str, list[Table]]]:
    """Return the tables of `TABLES`, by schema. What cannot be read is left out."""
    found: dict[str, list[Table]] = {}
    for row in result.rows[:MAX_TABLES]:
        if len(row) == 4 and isinstance(row[0], str) and isinstance(row[1], str):
            table = Table(
                isolated(row[0]), isolated(row[1]), KINDS.get(str(row[2]), ""), _columns(row[3])
            )
            found.setdefault(row[0], []).append(table)
    return list(found.items())


def _columns(text: str | None) -> list[tuple[str, str]]:
    try:
        return [(isolated(str(name)), str(type_)) for name, type_ in json.loads(text or "[]")]
    except (ValueError, TypeError, RecursionError):
        return []


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
