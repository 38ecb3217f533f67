"""The import of a CSV file reads no more of it than it takes, and lets other requests have their
turn."""

import time

import pytest

from console.query import table_imports
from console.query.csv_text import MAX_FIELDS, UnreadableCsv
from console.query.schema_tree import Table
from console.query.table_changes import Refused
from console.query.table_description import Description, TableColumn

COLUMN = TableColumn(
    "a", "text", "text", is_nullable=True, is_generated=False, is_identity=False,
    is_long=True, is_exact=True, operators=(),
)  # fmt: skip
DESCRIBED = Description(
    Table("public", "t"), [COLUMN], [], 0, is_insertable=True, is_updatable=True, has_rules=False
)


def test_a_file_of_too_many_values_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_imports, "MOST_VALUES", 20_000)

    def seconds(lines: int) -> float:
        began = time.process_time()
        with pytest.raises(Refused, match="more than 20,000 values"):
            table_imports._read(DESCRIBED, b"a\n" + b"\n" * lines)
        return time.process_time() - began

    fewest = min(seconds(30_000) for _ in range(3))
    assert min(seconds(3_000_000) for _ in range(2)) < 20 * fewest


def test_a_row_of_too_many_fields_is_not_read_to_its_end() -> None:
    with pytest.raises(UnreadableCsv, match="Line 2 has more than 2,000 fields"):
        table_imports._read(DESCRIBED, b"a\n" + b"," * (MAX_FIELDS + 1))


def test_other_requests_have_their_turn_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    _, rows = table_imports._read(DESCRIBED, b"a\n" + b"x\n" * 10_000)
    assert len(rows) == 10_000
    assert pauses == [0] * 10
