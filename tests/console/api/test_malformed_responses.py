"""The pages of operations, runs and events do not fail if a server sends unknown values, values of
wrong types, or leaves fields out."""

import json
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.events.test_activity import event
from tests.console.operations.test_run_page import RUN, told
from tests.selection import first_of

pytestmark = pytest.mark.slow

MALFORMED: list[Any] = [None, True, -1, 1e308, "<script>", [1], {"a": {"b": 1}}]
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


def respond_with(api: Misbehaving, operation: dict[str, Any], sent_event: dict[str, Any]) -> None:
    body = {
        "operation": operation,
        "operations": [operation, told(id="two", status="failed", error="no disk")],
        "events": [sent_event],
        "branches": [{"id": "br-a", "name": "dev"}],
        "endpoints": [{"id": "ep-a"}],
        "project": {"id": "p"},
    }
    api.body = json.dumps(body).encode()


def assert_no_page_fails(dave: Person) -> None:
    """An exception in a view fails this check too, because Django's test client raises it again."""
    for path in PAGES:
        shown = dave.get(path)
        assert shown.status_code in (200, 302, 404), path
        assert b"<script>" not in shown.content.partition(b'id="live"')[2]


@pytest.mark.parametrize("field", first_of((name for name in OPERATION if name != "id"), count=3))
def test_pages_work_with_malformed_fields_of_operations(
    dave: Person, misbehaving: Misbehaving, field: str
) -> None:
    for value in MALFORMED:
        respond_with(misbehaving, OPERATION | {field: value}, event(1, "endpoint.updated"))
        assert_no_page_fails(dave)
    respond_with(misbehaving, {k: v for k, v in OPERATION.items() if k != field}, event(1, "x"))
    assert_no_page_fails(dave)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "field", first_of(["detail", "started_at", "finished_at", "duration_ms", "name"])
)
def test_pages_work_with_malformed_fields_of_steps(
    dave: Person, misbehaving: Misbehaving, field: str
) -> None:
    step = {
        "name": "copying",
        "started_at": "2026-11-21T10:00:01Z",
        "finished_at": None,
        "duration_ms": None,
        "detail": {"bytes": 1, "error": "x", "operation_id": "two"},
    }
    value: object
    for value in [*MALFORMED, {"error": 5}, {"operation_id": []}, {"bytes": "many"}]:
        for status in ("running", "failed"):
            steps = [step | {field: value}, step]
            respond_with(misbehaving, OPERATION | {"steps": steps, "status": status}, event(1, "x"))
            assert_no_page_fails(dave)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "field", first_of((name for name in event(1, "x") if name != "id"), count=3)
)
def test_pages_work_with_malformed_fields_of_events(
    dave: Person, misbehaving: Misbehaving, field: str
) -> None:
    full = event(1, "operation.failed", operation_ids=["one"], endpoint_id="ep-a", branch_id="b/b")
    for value in MALFORMED:
        respond_with(misbehaving, OPERATION, full | {field: value})
        assert_no_page_fails(dave)


@pytest.mark.thorough
@pytest.mark.parametrize("status", ["unknown", "error", "skipped", "cancelling"])
def test_an_unknown_action_is_shown_by_its_own_name(
    dave: Person, misbehaving: Misbehaving, status: str
) -> None:
    operation = OPERATION | {
        "status": status,
        "action": "defragment_disk",
        "initiator": {"type": "x"},
    }
    respond_with(misbehaving, operation, event(1, "disk.defragmented"))
    assert_no_page_fails(dave)
    assert "Defragment disk" in dave.get(RUN).content.decode()
