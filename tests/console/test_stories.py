"""An operation's page: its story, its request, who began it, what does its work anew."""

import json
import re
from typing import Any

import pytest

from console.api_operations import Operation
from console.story import story
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

STEPS = [
    {
        "name": "waiting",
        "started_at": "2026-11-21T10:00:00.000000Z",
        "finished_at": "2026-11-21T10:00:01.000000Z",
        "duration_ms": 1000,
        "detail": {"operation_id": "other-1"},
    },
    {
        "name": "copying",
        "started_at": "2026-11-21T10:00:01.000000Z",
        "finished_at": "2026-11-21T10:00:03.500000Z",
        "duration_ms": 2500,
        "detail": {"bytes": 42_000_000, "of_bytes": 84_000_000},
    },
    {
        "name": "polishing_mirrors",
        "started_at": "2026-11-21T10:00:03.500000Z",
        "finished_at": "2026-11-21T10:00:04.000000Z",
        "duration_ms": 500,
        "detail": {"error": "the <b>mirror</b> broke", "mirrors": 2, "restart": True, "odd": {}},
    },
]


def told(**fields: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "project_id": "p",
        "action": "create_branch",
        "status": "finished",
        "created_at": "2026-11-21T10:00:00Z",
        "updated_at": "2026-11-21T10:00:04Z",
        "chain_id": "chain-1",
        "initiator": {"type": "user", "name": "laptop"},
        "steps": STEPS,
        **fields,
    }


def answer_with(api: Misbehaving, operation: dict[str, Any], *others: dict[str, Any]) -> None:
    body = {
        "operation": operation,
        # The newest first, as the API lists them.
        "operations": [*others[::-1], operation],
        "branches": [],
        "endpoints": [],
        "project": {"id": "p"},
    }
    api.body = json.dumps(body).encode()


def test_it_works(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, told(), told(id="two", action="start_compute"))
    page = Page(dave.get("/projects/p/operations/one"))
    assert "by key laptop" in page.text
    assert "Waiting for operation other-1 1.0 s" in page.text
    assert 'href="/projects/p/operations/other-1"' in page.html
    assert "Copying the data 42 MB of 84 MB 2.5 s" in page.text
    assert "Polishing mirrors mirrors 2 restart the <b>mirror</b> broke 500 ms" in page.text
    assert "<b>mirror" not in page.html
    assert "Of the same request 2" in page.text
    assert not page.polls
    # In their order, and this one is no link to itself.
    assert [row.split(" | ")[0] for row in page.rows()] == ["Create branch", "Start compute"]
    assert 'href="/projects/p/operations/two"' in page.html
    assert 'href="/projects/p/operations/one"' not in page.html


def test_who_is_waited_for_is_called_by_its_name_where_it_is_of_the_same_request(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(), told(id="other-1", action="create_timeline"))
    assert "Waiting for “Create timeline”" in Page(dave.get("/projects/p/operations/one")).text


def test_another_server_tells_less_and_nothing_looks_broken(
    dave: Person, misbehaving: Misbehaving
) -> None:
    plain = told()
    for name in ("chain_id", "initiator", "steps"):
        del plain[name]
    for status in ("running", "finished", "failed", "cancelled"):
        answer_with(misbehaving, plain | {"status": status})
        misbehaving.asked.clear()
        page = Page(dave.get("/projects/p/operations/one"))
        for words in (" by ", "story", "same request", "Try", "Cancel…"):
            assert words not in page.text, status
        assert "<form" not in page.html.partition('id="live"')[2].partition("</main>")[0]
        # Nor is it asked for what it does not know.
        assert len(misbehaving.asked) == 3
        listed = Page(dave.get("/projects/p/operations"))
        assert "Filter" not in listed.text
        assert " by " not in listed.text


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


def test_it_polls_until_the_last_of_the_request_has_ended(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(), told(id="two", status="cancelling"))
    assert Page(dave.get("/projects/p/operations/one")).polls
    answer_with(misbehaving, told(), told(id="two", status="cancelled"))
    assert not Page(dave.get("/projects/p/operations/one")).polls
    assert dave.htmx_get("/projects/p/operations/one/live?n=4").status_code == 286


def test_what_did_its_work_anew_is_linked_both_ways(dave: Person, misbehaving: Misbehaving) -> None:
    retried = told(status="failed", error="no disk")
    anew = told(id="two", chain_id="chain-2", retry_of="one", initiator={"type": "retry"})
    answer_with(misbehaving, retried, anew)
    page = Page(dave.get("/projects/p/operations/one"))
    assert "Tried again as two" in page.text
    assert re.search(r'href="/projects/p/operations/two"', page.html)
    assert any("initiator=retry" in path for path in misbehaving.asked)
    answer_with(misbehaving, anew, retried)
    page = Page(dave.get("/projects/p/operations/two"))
    assert "Does anew the work of one" in page.text
    assert "by a retry" in page.text


def test_the_page_stands_where_its_request_cannot_be_read(
    dave: Person, misbehaving: Misbehaving
) -> None:
    body = {"operation": told(status="failed"), "branches": [], "project": {"id": "p"}}
    misbehaving.body = json.dumps(body).encode()
    assert dave.get("/projects/p/operations/one").status_code == 200
