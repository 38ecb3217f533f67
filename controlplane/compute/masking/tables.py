"""Masks the rows of one table, and scans the table for what should not be there any more.

All values of a column without a rule are looked at by the detectors. For a column whose masked
values must all be new, the original values are remembered meanwhile, as numbers in a temporary
table. A message names a column, and never shows a value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from controlplane.compute.masking.detecting import DETECTORS
from controlplane.compute.masking.functions import SECRET, RuleRefused, identifier
from controlplane.compute.masking.planning import Column, Table
from controlplane.compute.processes.session import Session
from controlplane.compute.schemas.schema_restoring import CopyInterrupted


def mask_table(
    platform: Session, masker: Session, database: str, table: Table, secret: str
) -> dict[str, Any]:
    """Mask the table's rows, and look for what is left of their values. Returns what was done."""
    place = f"{identifier(table.schema)}.{identifier(table.name)}"
    masked = [column for column in table.columns if column.mask.expression]

    def run(statement: str) -> psycopg.Cursor[tuple[object, ...]]:
        # Code of the owner, such as an index's expression, may have changed how names are found.
        masker.execute(b"RESET ALL")
        text = statement.replace("%", "%%").replace(SECRET, "%(secret)s")
        return masker.execute(text.encode(), {"secret": secret})

    try:
        if table.forces_row_security and masked:
            platform.execute(f"ALTER TABLE {place} NO FORCE ROW LEVEL SECURITY".encode())
        replaced = [column for column in masked if column.mask.replaces_all]
        for number, column in enumerate(replaced):
            kept = f"SELECT DISTINCT {_digest(column)} AS d FROM ONLY {place}"
            run(f"CREATE TEMPORARY TABLE before_{number} AS {kept}")
        for column in masked:
            if column.mask.shuffles:
                run(_shuffle(place, column))
        changes = [
            f"{identifier(column.name)} = {column.mask.expression}"
            for column in masked
            if not column.mask.shuffles
        ]
        if changes:
            run(f"UPDATE ONLY {place} SET {', '.join(changes)}")
        left = {}
        for number, column in enumerate(replaced):
            where = f"JOIN pg_temp.before_{number} ON d = {_digest(column)}"
            ((left[column.name],),) = run(f"SELECT count(*) FROM ONLY {place} {where}").fetchall()
            run(f"DROP TABLE pg_temp.before_{number}")
        (counts,) = run(_scan(place, table.columns)).fetchall()
        if table.forces_row_security and masked:
            platform.execute(f"ALTER TABLE {place} FORCE ROW LEVEL SECURITY".encode())
    except psycopg.Error as error:
        raise refusal(f"{database}.{table.schema}.{table.name}", error) from error
    return _table_report(database, table, [int(str(count)) for count in counts], left)


def _shuffle(place: str, column: Column) -> str:
    name = identifier(column.name)
    return (
        f"UPDATE ONLY {place} SET {name} = given.value FROM (SELECT ctid AS place, row_number() "
        f"OVER () AS n FROM ONLY {place}) AS rows JOIN (SELECT {name} AS value, row_number() OVER "
        f"(ORDER BY {column.mask.expression}) AS n FROM ONLY {place}) AS given USING (n) "
        f"WHERE {place}.ctid = rows.place"
    )


def _digest(column: Column) -> str:
    """Stands for a value while the original values are remembered. NULL for NULL."""
    return f'hashtextextended(CAST({identifier(column.name)} AS text) COLLATE "C", 0)'


def _is_scanned(column: Column) -> bool:
    """Whether the column has values that were there before, and may hold text or long numbers."""
    if column.because == "plain":
        return column.type.split("(")[0] in ("bigint", "numeric")
    return not column.mask.is_made


def _scan(place: str, columns: Sequence[Column]) -> str:
    """Counts the rows, then for each scanned column the values, and those that each detector
    finds."""
    counts, texts = ["count(*)"], []
    for number, column in enumerate(filter(_is_scanned, columns)):
        name, value = identifier(column.name), f"v{number}"
        text = f"encode({name}, 'escape')" if column.type == "bytea" else f"CAST({name} AS text)"
        texts.append(f"{text} AS {value}")
        counts.append(f"count({value})")
        counts += (f"count(*) FILTER (WHERE {one.finds(value)})" for one in DETECTORS.values())
    return (
        f"SELECT {', '.join(counts)} FROM (SELECT {', '.join(texts)} FROM ONLY {place} OFFSET 0) "
        "AS rows"
    )


def _table_report(
    database: str, table: Table, counts: Sequence[int], left: Mapping[str, object]
) -> dict[str, Any]:
    """What was done with the table. Raises RuleRefused if a column still has values that it must
    not have."""
    rows, *others = counts
    columns = []
    for column in table.columns:
        place = ".".join((database, table.schema, table.name, column.name))
        if left.get(column.name):
            raise RuleRefused(
                f"{left[column.name]} masked values of {place} equal an original one: use a "
                "masking function with more possible values"
            )
        is_masked, found = column.mask.expression is not None, {}
        if _is_scanned(column):
            values, *numbers = others[: 1 + len(DETECTORS)]
            others = others[1 + len(DETECTORS) :]
            found = {
                name: number for name, number in zip(DETECTORS, numbers, strict=True) if number
            }
        for name, number in found.items():
            if column.because != "rule" and number > DETECTORS[name].share * values:
                raise RuleRefused(
                    f"{number} of {values} values of {place} look like {name}: add a masking rule "
                    "for the column; anon.keep() leaves it as it is"
                )
        whole = {"name": column.name, "because": column.because, "masked": is_masked}
        columns.append(whole | ({"found": found} if found else {}))
    return {"schema": table.schema, "table": table.name, "rows": rows, "columns": columns}


def refusal(place: str, error: psycopg.Error) -> Exception:
    """The error without its message if that can show a value of the row."""
    state = error.sqlstate or ""
    if not state or state.startswith(("08", "53", "57")):
        return CopyInterrupted(f"masking {place} was interrupted: {type(error).__name__}")
    shows_value = state.startswith(("22", "23", "P0"))
    named = error.diag.constraint_name
    words = type(error).__name__ + (f" ({named})" if named else "")
    return RuleRefused(
        f"{place} cannot be masked: {words if shows_value else error.diag.message_primary}"
    )
