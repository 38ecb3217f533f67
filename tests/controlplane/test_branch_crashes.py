"""A worker that is killed while it makes a schema-only branch, or while branches expire."""

import random
import time

import pytest

from tests.controlplane.cancel_retry import cancel
from tests.support.service import Service
from tests.support.waiting import wait_for

SCHEMA_ONLY = {"branch": {"init_source": "schema-only"}}
SEED = 20270131


def assert_nothing_is_left(service: Service) -> None:
    """Check that nothing is left of the platform's own computes. `settle` checks those that run and
    the staging directories."""
    service.settle()
    assert list(service.state_dir.joinpath("sockets").glob("schema*")) == []
    assert list(service.state_dir.joinpath("branches").glob("*/schema*")) == []
    assert list(service.state_dir.joinpath("locks").glob(".br-*")) == []


@pytest.mark.thorough
@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "asleep"])
def test_killed_while_a_schema_is_copied(service: Service, sleeps: bool) -> None:
    project = service.project()
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    if sleeps:
        project.suspend()
    chance = random.Random(SEED)
    for _ in range(3):
        made = project.client.post(project.path + "/branches", SCHEMA_ONLY)
        branch_id = made["branch"]["id"]
        staging = service.state_dir / "branches" / f".{branch_id}"
        wait_for(staging.exists, "the beginning of the work", timeout=60)
        time.sleep(chance.uniform(0, 1.5))  # kill at a random moment
        service.kill("worker")
        project.done(made, timeout=120)
        endpoint = project.create_endpoint(branch_id)["endpoint"]["id"]
        assert project.sql("SELECT count(*) FROM kept", endpoint_id=endpoint) == [(0,)]
        project.suspend(endpoint)
        assert_nothing_is_left(service)
    project.start()
    assert project.sql("SELECT number FROM kept") == [(7,)]


@pytest.mark.thorough
def test_killed_while_an_unfinished_schema_is_removed(service: Service) -> None:
    project = service.project()
    project.suspend()
    made = project.client.post(project.path + "/branches", SCHEMA_ONLY)
    branch_id = made["branch"]["id"]
    staging = service.state_dir / "branches" / f".{branch_id}"
    wait_for((staging / "data").exists, "the middle of the work", timeout=60)
    service.kill("worker")
    cancel(project, made["operations"][0])
    assert {row["status"] for row in project.client.finish(made)} == {"cancelled"}
    assert_nothing_is_left(service)
    project.done(project.client.delete(project.branch_path(branch_id)))
    project.start()


@pytest.mark.thorough
def test_killed_while_branches_expire(service: Service) -> None:
    project = service.project()
    asked = [{"branch": {"ttl_interval_seconds": 3600}, "endpoints": [{"type": "read_write"}]}] * 3
    made = [project.done(project.client.post(project.path + "/branches", one)) for one in asked]
    ids = {one["branch"]["id"] for one in made}
    for branch_id in ids:
        path = project.branch_path(branch_id)
        project.client.patch(path, {"branch": {"ttl_interval_seconds": 1}})

    def left() -> set[str]:
        found = project.client.get(project.path + "/branches")["branches"]
        return {branch["id"] for branch in found} & ids

    chance = random.Random(SEED)
    for _ in range(4):
        time.sleep(chance.uniform(0, 2))
        service.kill("worker")
        wait_for(lambda: bool(service.processes("worker")), "another worker", timeout=60)
    wait_for(lambda: not left(), "the end of all", timeout=90)
    assert_nothing_is_left(service)
    for branch_id in ids:
        query = {"branch_id": branch_id, "type": "branch.expired,branch.deleted"}
        events = project.client.get("/events", **query)["events"]
        assert [event["type"] for event in events] == ["branch.deleted", "branch.expired"]
        assert not service.stack.data_dir(branch_id).exists()
