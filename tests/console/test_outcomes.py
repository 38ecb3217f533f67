"""Which failures a page reports: of which operations, for how long, and in which words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from console.api.resources.operations import Operation
from console.pages.outcomes import Existing, outcome


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


def test_a_success_of_another_action_does_not_hide_a_failure() -> None:
    found = outcome([told(1, "finished", endpoint_id="ep-b"), told(2, "failed")])
    assert [failure.operation_id for failure in found.failures or ()] == ["o2"]
    assert found.ending == "Nothing is in progress. Start endpoint of ep-a has failed."


def test_a_later_success_of_the_same_action_resolves_a_failure() -> None:
    found = outcome([told(1, "finished"), told(2, "failed")])
    assert not found.failures
    assert found.ending == "All operations have finished."
    # A retry in progress has no result yet. A success before the failure proves nothing.
    assert outcome([told(1, "running"), told(2, "failed")]).failures
    assert outcome([told(1, "failed"), told(2, "finished")]).failures


def test_the_failed_operation_is_blamed_and_not_those_that_were_not_run() -> None:
    why = "not run: the operation o2 (apply_config) of the same chain failed: no disk"
    victim = told(1, "failed", "suspend_compute", error=why)
    found = outcome([victim, told(2, "failed", "apply_config")])
    assert [failure.name for failure in found.failures or ()] == ["Apply configuration"]
    assert found.failure is not None
    assert found.failure.error == "no disk"
    # If the failed operation is not on the page, its known id links to it.
    alone = outcome([victim]).failure
    assert alone is not None
    assert alone.operation_id == "o2"
    assert alone.error == why


def test_repeated_failures_are_shown_as_one() -> None:
    found = outcome([told(1, "failed"), told(2, "failed"), told(3, "failed", "apply_config")])
    assert [failure.operation_id for failure in found.failures or ()] == ["o1", "o3"]


def test_a_deleted_resource_has_no_failures() -> None:
    failed = told(2, "failed")
    assert not outcome([failed], Existing(endpoints=frozenset({"ep-b"}))).failures
    assert outcome([failed], Existing(endpoints=frozenset({"ep-a"}))).failures
    of_branch = told(2, "failed", "create_branch", endpoint_id="")
    # A branch whose creation failed may not be listed at all.
    assert outcome([of_branch], Existing(branches=frozenset())).failures
    deletion = told(1, "running", "delete_timeline", endpoint_id="")
    assert not outcome([deletion, of_branch]).failures
    # A deletion that fails is a failure.
    failed_deletion = told(1, "failed", "delete_timeline", endpoint_id="")
    left = outcome([failed_deletion, of_branch])
    assert left.failure is not None
    assert left.failure.operation_id == "o1"
    assert not left.other_failures


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


def test_some_of_the_operations_do_not_prove_that_none_failed() -> None:
    found = outcome([told(1, "failed")], None)
    assert found.failure is None
    assert found.ending == "No operation shown here is in progress any more."


def test_a_long_operation_shows_its_duration() -> None:
    assert outcome([told(0, "running")]).lasting_ms is None
    lasting = outcome([told(0, "running"), told(2, "scheduling")]).lasting_ms
    assert lasting is not None
    assert 119_000 <= lasting <= 125_000
    assert outcome([told(2, "finished")]).lasting_ms is None
