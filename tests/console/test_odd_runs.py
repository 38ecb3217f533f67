"""Runs and events as no server should tell of them: unknown values, wrong types, missing fields."""

import json
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.test_activity import event
from tests.console.test_run_page import RUN, told
from tests.selection import first_of

pytestmark = pytest.mark.slow

ODD: list[Any] = [None, True, -1, 1e308, "<script>", [1], {"a": {"b": 1}}]
PAGES = (
    *(f"{RUN}/live", "/projects/p/operations-live", "/projects/p/timeline-live"),
    *("/projects/p/operations/one", "/projects/p/events-live", "/activity-live"),
)
OPERATION = told(
    endpoint_id="ep-a",
    branch_id="br-a",
    error="no disk",
    failures_count=2,
    retry_at="2026-11-21T10:00:04Z",
    total_duration_ms=10,
    retry_of="zero",
)


def answer(api: Misbehaving, operation: dict[str, Any], told_of: dict[str, Any]) -> None:
    body = {
        "operation": operation,
        "operations": [operation, told(id="two", status="failed", error="no disk")],
        "events": [told_of],
        "branches": [{"id": "br-a", "name": "dev"}],
        "endpoints": [{"id": "ep-a"}],
        "project": {"id": "p"},
    }
    api.body = json.dumps(body).encode()


def assert_all_stand(dave: Person) -> None:
    """Django's client raises what a page would hide behind a 500."""
    for path in PAGES:
        shown = dave.get(path)
        assert shown.status_code in (200, 286, 302, 404), path
        assert b"<script>" not in shown.content.partition(b'id="live"')[2]


@pytest.mark.parametrize("field", first_of((name for name in OPERATION if name != "id"), count=3))
def test_odd_fields_of_operations_do_no_harm(
    dave: Person, misbehaving: Misbehaving, field: str
) -> None:
    for value in ODD:
        answer(misbehaving, OPERATION | {field: value}, event(1, "endpoint.updated"))
        assert_all_stand(dave)
    answer(misbehaving, {k: v for k, v in OPERATION.items() if k != field}, event(1, "x"))
    assert_all_stand(dave)


@pytest.mark.parametrize(
    "field", first_of(["detail", "started_at", "finished_at", "duration_ms", "name"])
)
def test_odd_fields_of_steps_do_no_harm(dave: Person, misbehaving: Misbehaving, field: str) -> None:
    step = {
        "name": "copying",
        "started_at": "2026-11-21T10:00:01Z",
        "finished_at": None,
        "duration_ms": None,
        "detail": {"bytes": 1, "error": "x", "operation_id": "two"},
    }
    value: object
    for value in [*ODD, {"error": 5}, {"operation_id": []}, {"bytes": "many"}]:
        for status in ("running", "failed"):
            steps = [step | {field: value}, step]
            answer(misbehaving, OPERATION | {"steps": steps, "status": status}, event(1, "x"))
            assert_all_stand(dave)


@pytest.mark.parametrize(
    "field", first_of((name for name in event(1, "x") if name != "id"), count=3)
)
def test_odd_fields_of_events_do_no_harm(
    dave: Person, misbehaving: Misbehaving, field: str
) -> None:
    full = event(1, "operation.failed", operation_ids=["one"], endpoint_id="ep-a", branch_id="b/b")
    for value in ODD:
        answer(misbehaving, OPERATION, full | {field: value})
        assert_all_stand(dave)


@pytest.mark.parametrize("status", ["teleported", "error", "skipped", "cancelling"])
def test_unknown_words_are_shown_as_they_are(
    dave: Person, misbehaving: Misbehaving, status: str
) -> None:
    odd = OPERATION | {"status": status, "action": "polish_mirror", "initiator": {"type": "tom"}}
    answer(misbehaving, odd, event(1, "mirror.polished"))
    assert_all_stand(dave)
    assert "Polish mirror" in dave.get(RUN).content.decode()
