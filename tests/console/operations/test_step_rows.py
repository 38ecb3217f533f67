"""The rows and bars that the console makes of one operation's steps."""

from typing import Any

import pytest

from console.api.resources.operations import Operation
from console.operations.waterfall import step_rows
from tests.console.operations.test_run_page import STEPS, told


@pytest.mark.parametrize(
    "steps", [None, {}, "x", [], [{}], [{"name": "queued", "started_at": "soon", "detail": []}]]
)
def test_malformed_steps_are_left_out_or_shown_without_a_bar(steps: Any) -> None:
    operation = told(steps=steps)
    if steps in ({}, None, [], "x"):
        assert rows_of(operation) == []
        return
    (row,) = rows_of(operation)
    assert row.bar is None
    assert row.duration_ms is None


def rows_of(operation: dict[str, Any]) -> list[Any]:
    return step_rows(Operation.read(operation), ())


def test_bars_are_to_scale() -> None:
    rows = rows_of(told())
    assert [(row.bar.left, row.bar.width) for row in rows] == [
        ("0.00%", "25.00%"),
        ("25.00%", "62.50%"),
        ("87.50%", "12.50%"),
    ]


def test_only_the_last_unfinished_step_is_shown_as_running() -> None:
    cut_off = STEPS[1] | {"finished_at": None, "duration_ms": None}
    going_on = STEPS[2] | {"finished_at": None, "duration_ms": None, "detail": {}}
    rows = rows_of(told(status="running", steps=[STEPS[0], cut_off, going_on]))
    assert [row.shape for row in rows] == ["done", "done", "running"]
    # A step without an end is taken to end when the next one begins.
    assert rows[1].duration_ms == 2500
    ended = rows_of(told(steps=[STEPS[0], cut_off, going_on]))
    assert [row.shape for row in ended] == ["done", "done", "done"]
    assert ended[2].duration_ms == 500


def test_the_number_of_roles_and_databases_stands_alone() -> None:
    applied = {"name": "applying_catalog", "detail": {"roles_and_databases": 2, "refused": 0}}
    (row,) = rows_of(told(steps=[STEPS[0] | applied]))
    assert (row.label, row.notes) == ("Applying roles and databases", ["2"])
