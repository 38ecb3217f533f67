"""A worker, or every process, that is killed while a branch's data is replaced. The branch has the
old data or the new, with the roles that belong to it, and nothing else is left."""

import random
import time

import pytest

from controlplane.compute import branch_data
from controlplane.compute.filesystem import remove_tree
from tests.support.project import Project
from tests.support.service import Service
from tests.support.waiting import wait_for


@pytest.mark.thorough
def test_killed_at_a_random_moment(service: Service) -> None:
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
    branch_data.take_back("br-target", kept_as="br-kept")
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
