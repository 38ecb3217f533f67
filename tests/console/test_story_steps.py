"""The steps of one operation, as rows with bars."""

from typing import Any

import pytest

from console.api.resources.operations import Operation
from console.operations.steps import story
from tests.console.test_stories import STEPS, told


@pytest.mark.parametrize(
    "steps", [None, {}, "x", [], [{}], [{"name": "queued", "started_at": "soon", "detail": []}]]
)
def test_a_story_with_gaps_is_told_as_far_as_it_goes(steps: Any) -> None:
    operation = told(steps=steps)
    if steps in ({}, None, [], "x"):
        assert story_or_nothing(operation) == []
        return
    (row,) = story_or_nothing(operation)
    assert row.bar is None
    assert row.duration_ms is None


def story_or_nothing(operation: dict[str, Any]) -> list[Any]:
    return story(Operation.read(operation), ())


def test_a_bar_shows_when_a_step_was() -> None:
    rows = story_or_nothing(told())
    assert [(row.bar.left, row.bar.width) for row in rows] == [
        ("0.00%", "25.00%"),
        ("25.00%", "62.50%"),
        ("87.50%", "12.50%"),
    ]


def test_the_step_that_goes_on_and_no_other_moves() -> None:
    cut_off = STEPS[1] | {"finished_at": None, "duration_ms": None}
    going_on = STEPS[2] | {"finished_at": None, "duration_ms": None, "detail": {}}
    rows = story_or_nothing(told(status="running", steps=[STEPS[0], cut_off, going_on]))
    assert [row.shape for row in rows] == ["done", "done", "running"]
    # Until the next began.
    assert rows[1].duration_ms == 2500
    ended = story_or_nothing(told(steps=[STEPS[0], cut_off, going_on]))
    assert [row.shape for row in ended] == ["done", "done", "done"]
    assert ended[2].duration_ms == 500
