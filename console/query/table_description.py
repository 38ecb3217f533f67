"""What the catalog says about a table: its columns and their types, what identifies a row, and what
may be changed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from console.api.fields import isolated
from console.query.pg_types import NUMBERS
from console.query.schema_tree import Table, quoted
from console.query.sql_over_http import Query, Result

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
    found = [json.loads(row[0] or "") for row in result.rows]
    columns = [TableColumn(**one | {"name": isolated(one["name"])}) for one in found]
    in_key = [(int(row[1]), n) for n, row in enumerate(result.rows) if row[1]]
    key = [columns[n] for _, n in sorted(in_key)]
    _, _, place, about = result.rows[0]
    return Description(table, columns, key or PLACES[place or ""], **json.loads(about or ""))
