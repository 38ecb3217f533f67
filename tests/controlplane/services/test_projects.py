"""`/projects`: list, states, get, change, delete."""

from typing import Any

import pytest

from tests.controlplane import fields
from tests.controlplane.fields import NO_PROJECTS, assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def owner(stack: Stack) -> Client:
    """An account with 23 projects. Only their rows exist, because a list reads nothing else."""
    client = stack.client()
    with stack.database() as connection:
        account = connection.execute("SELECT max(id) FROM controlplane_account").fetchone()
        assert account is not None
        connection.execute(
            "INSERT INTO controlplane_project (id, account_id, region_id, host_id, name,"
            " pg_version, default_endpoint_settings, settings, history_retention_seconds,"
            " store_passwords, created_at, updated_at)"
            " SELECT 'listed-' || chr(97 + i) || '-' || 10000000 + %s, %s, 'local', 'local',"
            " 'Number ' || i, 18, '{}', '{}', 0, true,"
            # Two pairs of projects have the same creation time.
            " now() - (i / 2) * interval '1 second', now() FROM generate_series(0, 22) i",
            [account[0], account[0]],
        )
    return client


class TestList:
    def test_it_works(self, owner: Client) -> None:
        body = owner.get("/projects")
        assert set(body) == {"projects", "pagination", "applications", "integrations"}
        assert [project["name"] for project in body["projects"]] == [
            f"Number {i}" for i in range(10)
        ]
        for project in body["projects"]:
            assert_fields(project, fields.PROJECT_LISTED, fields.PROJECT_AT_TIMES)
        assert body["pagination"] == {"cursor": body["projects"][-1]["id"]}

    @pytest.mark.parametrize("limit", [1, 7, 23, 400])
    def test_paging_loses_nothing_and_repeats_nothing(self, owner: Client, limit: int) -> None:
        names: list[str] = []
        query: dict[str, Any] = {"limit": limit}
        while True:
            page = owner.get("/projects", **query)
            if not page["projects"]:
                break
            names += [project["name"] for project in page["projects"]]
            query["cursor"] = page["pagination"]["cursor"]
        assert names == [f"Number {i}" for i in range(23)]

    def test_search_is_by_part_of_the_name_or_by_id(self, owner: Client) -> None:
        found = owner.get("/projects", search="ER 2")["projects"]
        names = [project["name"] for project in found]
        assert names == ["Number 2", "Number 20", "Number 21", "Number 22"]
        project_id = found[0]["id"]
        assert [p["id"] for p in owner.get("/projects", search=project_id)["projects"]] == [
            project_id
        ]
        assert owner.get("/projects", search="%") == NO_PROJECTS

    def test_an_account_sees_only_its_own(self, owner: Client, alice: Client) -> None:
        assert alice.get("/projects") == NO_PROJECTS
        theirs = owner.get("/projects", limit=1)["projects"][0]["id"]
        response = alice.call("GET", "/projects", params={"cursor": theirs})
        assert refusal(response) == (400, "invalid cursor: no such project")


class TestGet:
    def test_it_works(self, standing: Project) -> None:
        body = standing.client.get(standing.path)
        assert set(body) == {"project"}
        assert_fields(body["project"], fields.PROJECT, fields.PROJECT_AT_TIMES)
        assert body["project"]["id"] == standing.id

    def test_the_usage_of_its_computes_is_counted(self, fresh_project: Project) -> None:
        fresh_project.suspend()
        with fresh_project.stack.database() as connection:
            row = connection.execute(
                "SELECT active_seconds, compute_seconds FROM controlplane_usage"
                " WHERE branch_id = %s AND span = 'month'",
                [fresh_project.branch_id],
            ).fetchone()
        assert row is not None
        assert 0 < row[0] < 60
        assert row[1] == pytest.approx(row[0])  # of one compute unit


class TestChange:
    def test_it_works(self, standing: Project) -> None:
        body = standing.client.patch(standing.path, {"project": {"name": " Renamed "}})
        assert set(body) == {"project", "operations"}
        assert body["operations"] == []
        assert_fields(body["project"], fields.PROJECT, fields.PROJECT_AT_TIMES)
        assert standing.client.get(standing.path)["project"]["name"] == "Renamed"


class TestDelete:
    @pytest.mark.thorough
    def test_it_works(self, project: Project) -> None:
        branch = project.new_branch(endpoint=True)
        body = project.client.delete(project.path)

        assert set(body) == {"project"}
        assert_fields(body["project"], fields.PROJECT, fields.PROJECT_AT_TIMES)
        for path in ("", "/branches", "/endpoints", "/operations"):
            response = project.client.call("GET", project.path + path)
            assert refusal(response) == (404, "project not found")
        assert project.client.get("/projects") == NO_PROJECTS
        for branch_id in (project.branch_id, branch["branch"]["id"]):
            data = project.stack.data_dir(branch_id)
            wait_for(lambda data=data: not data.parent.exists(), f"the end of {data}")  # type: ignore[misc]
        assert not project.is_running()

    def test_a_project_with_a_protected_branch_is_kept(self, project: Project) -> None:
        branch_id = project.new_branch_id(protected=True, name="precious")
        words = 'the branch "precious" is protected; end its protection first'
        assert refusal(project.client.call("DELETE", project.path)) == (422, words)
        assert project.client.get(project.path)["project"]["id"] == project.id
        project.client.patch(project.branch_path(branch_id), {"branch": {"protected": False}})
        assert project.client.delete(project.path)["project"]["id"] == project.id

    @pytest.mark.thorough
    def test_while_it_is_being_created(self, stack: Stack, alice: Client) -> None:
        project = Project.create(stack, alice, wait=False)
        alice.delete(project.path)
        with stack.database() as connection:

            def is_over() -> bool:
                rows = connection.execute(
                    "SELECT action, status FROM controlplane_operation WHERE project_id = %s"
                    " ORDER BY created_at",
                    [project.id],
                ).fetchall()
                return rows[-1] == ("delete_tenant", "finished")

            wait_for(is_over, "the end of delete_tenant")
        assert not stack.data_dir(project.branch_id).parent.exists()
        assert not project.is_running()


def test_it_works(project: Project) -> None:
    counts = {"active": 1, "idle": 0, "disabled": 0}
    state = {"project_id": project.id, "endpoints": counts, "unfinished_operations": 0}
    assert project.client.get("/projects/states") == {"projects": [state]}

    project.suspend()
    state["endpoints"] = {"active": 0, "idle": 1, "disabled": 0}
    assert project.client.get("/projects/states") == {"projects": [state]}

    with project.locked():
        asked = project.client.post(project.endpoint_path(rest="/start"))
        (found,) = project.client.get("/projects/states")["projects"]
        assert found["unfinished_operations"] == len(asked["operations"])
    project.client.finish(asked)

    project.change(disabled=True)
    state["endpoints"] = {"active": 0, "idle": 0, "disabled": 1}
    assert project.client.get("/projects/states") == {"projects": [state]}


def test_deleted_projects_and_those_of_others_are_not_listed(
    project: Project, stack: Stack
) -> None:
    assert stack.client().get("/projects/states") == {"projects": []}
    project.client.call("DELETE", project.path)
    assert project.client.get("/projects/states") == {"projects": []}
