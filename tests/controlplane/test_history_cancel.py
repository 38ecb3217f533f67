"""Cancels the creation of a branch of a past moment in the middle of each of its parts."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.tree import shares_blocks
from tests.controlplane.cancel_retry import SOON, cancel, ended
from tests.support.past import history, notes, with_history
from tests.support.project import Project
from tests.support.waiting import wait_for

HEAVY = 2 << 30  # bytes

# For each part of the work, whether it is under way in the staging directory.
UNDER_WAY: dict[str, Callable[[Path], bool]] = {
    "copying_base": lambda staging: (staging / "data" / "base" / "1" / "1000000").exists(),
    "adding_log": lambda staging: any((staging / "data" / "pg_wal").glob("0*")),
    "replay": lambda staging: (staging / "data" / "postmaster.pid").exists(),
}


@pytest.fixture
def child(fresh_project: Project) -> Any:
    """A branch with a base copy of its own, a lot of log after it, and the last commit's time."""
    project = with_history(fresh_project)
    project.sql("CREATE TABLE notes AS SELECT 'first' AS text")
    made = project.new_branch(endpoint=True)
    child_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
    wait_for(lambda: history(project, child_id).get("earliest"), "the first base copy")
    project.sql(
        "CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 250000)",
        endpoint_id=endpoint_id,
    )
    ((at,),) = project.sql("SELECT clock_timestamp()", endpoint_id=endpoint_id)
    project.sql("DELETE FROM notes", endpoint_id=endpoint_id)
    return child_id, at.isoformat()


@pytest.mark.thorough
@pytest.mark.parametrize("part", UNDER_WAY)
def test_a_cancelled_creation_leaves_nothing_and_can_be_done_again(
    fresh_project: Project, child: Any, part: str
) -> None:
    project, (child_id, at) = fresh_project, child
    branches = project.stack.state_dir / "branches"
    if shares_blocks(branches):
        pytest.skip("copies share their blocks here, and take no time")
    (base,) = (branches / child_id / "history").glob("*/bases/*/data")
    if part == "copying_base":
        heavy = base / "base" / "1" / "1000000"
        heavy.touch()
        os.truncate(heavy, HEAVY)
    before = history(project, child_id)["bases"]
    made = project.client.post(
        project.path + "/branches", {"branch": {"parent_id": child_id, "parent_timestamp": at}}
    )
    (create,), branch_id = made["operations"], made["branch"]["id"]
    staging = branches / f".{branch_id}"
    wait_for(lambda: UNDER_WAY[part](staging), part)
    assert [one["status"] for one in cancel(project, create)] == ["cancelling"]
    assert ended(project, create, within=SOON)["status"] == "cancelled"
    assert not staging.exists()
    assert not (branches / branch_id).exists()
    assert not list(project.stack.state_dir.glob(f"sockets/*{branch_id}*"))
    assert project.branch(branch_id)["current_state"] == "init"
    found = history(project, child_id)
    assert (found["bases"], found["gaps"]) == (before, [])
    (base / "base" / "1" / "1000000").unlink(missing_ok=True)
    # An endpoint's start makes the branch, and so does a new request.
    assert notes(project, branch_id) == ["first"]
    again = project.new_branch(parent_id=child_id, parent_timestamp=at)["branch"]
    assert notes(project, again["id"]) == ["first"]
