"""Which failures a page reports: of which operations, for how long, and in which words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from console.api.resources.operations import Operation
from console.pages.statuses import outcome


def told(number: int, status: str, action: str = "start_compute", **fields: Any) -> Operation:
    """Return an operation of `number` minutes ago, on ep-a unless the fields say otherwise."""
    at = (datetime.now(UTC) - timedelta(minutes=number)).isoformat()
    return Operation.read(
        {
            "id": f"o{number}",
            "action": action,
            "status": status,
            "chain_id": f"c{number}",
            "endpoint_id": "ep-a",
            "branch_id": "br-a",
            "created_at": at,
            "updated_at": at,
            **({"error": "no disk"} if status == "failed" else {}),
            **fields,
        }
    )


def test_a_failure_is_reported_until_it_is_superseded() -> None:
    found = outcome([told(1, "finished"), told(2, "failed")])
    assert [failure.id for failure in found.failures] == ["o2"]
    assert found.ending == "Nothing is in progress. Start endpoint of ep-a has failed."
    found = outcome([told(1, "finished"), told(2, "failed", superseded=True)])
    assert not found.failures
    assert found.ending == "All operations have finished."


def test_the_failed_operation_is_blamed_and_not_those_that_were_not_run() -> None:
    victim = told(1, "failed", "suspend_compute", error="not run", not_run_because="o2")
    found = outcome([victim, told(2, "failed", "apply_config")])
    assert [failure.id for failure in found.failures] == ["o2"]
    assert found.failed == "Apply configuration"
    assert not outcome([victim, told(2, "failed", superseded=True)]).failures
    # If the failed operation is not on the page, the other stands for it: both are of one run.
    alone = outcome([victim]).failure
    assert alone is not None
    assert alone.id == "o1"


def test_the_failed_creation_of_a_snapshot_is_called_that() -> None:
    copy = told(1, "failed", "create_branch", kind="create_snapshot", endpoint_id="")
    assert outcome([copy]).ending == "Nothing is in progress. Create snapshot of br-a has failed."


def test_an_old_failure_is_not_reported() -> None:
    assert not outcome([told(60 * 25, "failed")]).failures
    assert outcome([told(1, "failed", updated_at="")]).failures


def test_another_servers_error_is_a_failure_too() -> None:
    assert outcome([told(1, "error", chain_id="")]).failures
    assert not outcome([told(1, "teleported", chain_id="")]).failures


def test_several_are_counted() -> None:
    found = outcome([told(1, "failed"), told(2, "failed", endpoint_id="ep-b"), told(3, "running")])
    assert found.other_failures == 1
    assert found.unfinished == 1
    assert found.ending == "Nothing is in progress. 2 operations have failed."


def test_a_long_operation_shows_its_duration() -> None:
    assert outcome([told(0, "running")]).lasting_ms is None
    lasting = outcome([told(0, "running"), told(2, "scheduling")]).lasting_ms
    assert lasting is not None
    assert 119_000 <= lasting <= 125_000
    assert outcome([told(2, "finished")]).lasting_ms is None
