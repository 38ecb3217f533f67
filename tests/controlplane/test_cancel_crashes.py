"""A worker that is killed while it brings a cancelled operation to a safe point."""

import random
import time

import pytest

from controlplane.compute.tree import shares_blocks
from tests.controlplane.cancel_retry import (
    begun,
    cancel,
    long_copies,
    starting,
    told,
    wedged_starts,
)
from tests.support.project import Project
from tests.support.service import Service
from tests.support.waiting import wait_for


@pytest.mark.thorough
def test_killed_at_a_random_moment(service: Service) -> None:
    project = service.project()
    project.client.patch(project.endpoint_path(), {"endpoint": {"suspend_timeout_seconds": -1}})
    goal = project.new_branch_id()
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    chance = random.Random(20221209)
    for number in range(4):
        project.suspend()
        with wedged_starts(project):
            (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
            starting(project)
            assert told(cancel(project, start)) == [("start_compute", "cancelling")]
            time.sleep(chance.uniform(0, 0.4))  # kill at a random moment
            service.kill("worker")
            assert project.client.ended(project.id, start["id"])["status"] == "cancelled"
        project.start()
        # Of a reassignment with other settings, which has reached the other branch.
        size = chance.choice([0.5, 0.75])
        body = {"branch_id": goal, "autoscaling_limit_max_cu": size}
        with project.locked(goal):
            answer = project.client.patch(project.endpoint_path(), {"endpoint": body})
            apply = begun(project, answer["operations"][0])
        if number % 2:
            time.sleep(chance.uniform(0, 0.1))
        response = project.client.call("POST", f"{project.path}/operations/{apply['id']}/cancel")
        time.sleep(chance.uniform(0, 0.4))
        service.kill("worker")
        ending = project.client.ended(project.id, apply["id"])["status"]
        assert (ending == "cancelled") == response.ok
        service.settle()
        endpoint = project.endpoint()
        assert endpoint["branch_id"] == (project.branch_id if response.ok else goal)
        if not response.ok:
            project.change(branch_id=project.branch_id)
        project.start()
        assert project.sql("SELECT number FROM kept") == [(7,)]


@pytest.mark.thorough
def test_killed_while_a_copy_is_removed(service: Service) -> None:
    project: Project = service.project()
    branches = service.state_dir / "branches"
    if shares_blocks(branches):
        pytest.skip("copies share their blocks here, and take no time")
    with long_copies(project):
        made = project.client.post(
            project.path + "/branches", {"endpoints": [{"type": "read_write"}]}
        )
        staging = branches / f".{made['branch']['id']}"
        wait_for(lambda: (staging / "data" / "base").exists(), "the middle of a copy")
        cancel(project, made["operations"][0])
        service.kill("worker")
        statuses = {row["status"] for row in project.client.finish(made)}
        assert statuses == {"cancelled"}
    service.settle()
    assert not (branches / made["branch"]["id"]).exists()
    assert project.sql("SELECT 1") == [(1,)]
