"""A worker, or every process, that is killed while a branch's data is replaced, a schema-only
branch is made, branches expire, or a cancelled operation is brought to a safe point."""

import random
import time

import pytest

from controlplane.compute.data import branch_data
from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.filesystem import remove_tree
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
def test_killed_while_data_is_replaced(service: Service) -> None:
    project: Project = service.project()
    project.sql("CREATE TABLE version AS SELECT 0 AS number")
    child = project.new_branch(name="child", endpoint=True)
    child_id, endpoint_id = child["branch"]["id"], child["endpoints"][0]["id"]
    chance = random.Random(20240229)
    for number in range(1, 7):
        project.start()
        project.sql(f"UPDATE version SET number = {number}")
        kept = f"kept {number}" if number % 2 else None
        body = {"source_branch_id": project.branch_id, "preserve_under_name": kept}
        answer = project.client.post(project.branch_path(child_id, "/restore"), body)
        time.sleep(chance.uniform(0, 1.2))  # kill at a random moment
        if number % 3:
            service.kill("worker")
        else:
            service.kill_everything()
            service.up()
        project.stack = service.stack
        for operation in service.client.finish(answer):
            assert operation["status"] == "finished", operation
        service.settle()  # the source's death may not be noticed yet
        project.start(endpoint_id)
        found = project.sql("SELECT number FROM version", endpoint_id=endpoint_id)
        assert found == [(number,)]
        if kept:
            branches = project.client.get(project.path + "/branches")["branches"]
            (row,) = [row for row in branches if row["name"] == kept]
            made = project.create_endpoint(row["id"])["endpoint"]["id"]
            assert project.sql("SELECT number FROM version", endpoint_id=made) == [(number - 1,)]
            project.client.delete(project.branch_path(row["id"]))
    query = "SELECT count(*) FROM controlplane_branch WHERE hidden AND deleted_at IS NULL"
    with service.stack.database() as database:
        wait_for(lambda: database.execute(query).fetchone() == (0,), "the end of the old data")
    service.settle()
    places = {place.name for place in (service.state_dir / "branches").iterdir()}
    assert places == {project.branch_id, child_id}


@pytest.mark.parametrize("takes_source", [False, True])
@pytest.mark.parametrize("crash_after", range(4))
def test_each_step_on_disk_can_be_continued_and_undone(
    crash_after: int, takes_source: bool, tmp_path_factory: pytest.TempPathFactory, settings: object
) -> None:
    """For the directories that `replace` leaves after each of its renames."""
    branches = tmp_path_factory.mktemp("state") / "branches"
    branches.mkdir()
    settings.STATE_DIR = branches.parent  # type: ignore[attr-defined]

    def lay(name: str, text: str) -> None:
        (branches / name / "data").mkdir(parents=True)
        (branches / name / "data" / "PG_VERSION").write_text(text)

    def text_of(name: str) -> str:
        return (branches / name / "data" / "PG_VERSION").read_text()

    def crashed() -> None:
        for place in branches.iterdir():
            remove_tree(place)
        lay("br-source", "new")
        lay("br-target", "old")
        if crash_after > 0:
            lay(".br-target.br-kept", "new")
            if takes_source:
                remove_tree(branches / "br-source")
        if crash_after > 1:
            (branches / "br-target").rename(branches / "br-kept")
        if crash_after > 2:
            (branches / ".br-target.br-kept").rename(branches / "br-target")

    crashed()
    branch_data.undo_replace("br-target", kept_as="br-kept")
    source = set() if takes_source and crash_after else {"br-source"}
    assert {place.name for place in branches.iterdir()} == {*source, "br-target"}
    assert text_of("br-target") == "old"
    if crash_after or takes_source:  # a copy needs a user account
        crashed()
        branch_data.replace(
            *("br-target", "br-source"),
            kept_as="br-kept",
            must_keep=True,
            takes_source=takes_source,
        )
        names = {place.name for place in branches.iterdir()}
        assert names == {"br-target", "br-kept"} | (set() if takes_source else {"br-source"})
        assert (text_of("br-target"), text_of("br-kept")) == ("new", "old")


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


@pytest.mark.thorough
def test_killed_while_a_cancel_ends(service: Service) -> None:
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
