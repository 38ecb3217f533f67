"""`/projects/{project_id}/branches`: list, get, change, make default, delete."""

from typing import Any

import pytest

from tests.controlplane import fields
from tests.controlplane.fields import assert_fields
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for


class TestListAndGet:
    def test_it_works(self, project: Project) -> None:
        child = project.new_branch(name="child")["branch"]
        body = project.client.get(project.path + "/branches")
        assert isinstance(body["annotations"], dict)
        assert {branch["name"] for branch in body["branches"]} == {"main", "child"}
        for branch in body["branches"]:
            assert_fields(branch, fields.BRANCH, fields.BRANCH_AT_TIMES)
        assert project.branch(child["id"])["parent_id"] == project.branch_id

        def one_by_one_they_are_the_same() -> bool:
            listed = project.client.get(project.path + "/branches")["branches"]
            return all(branch == project.branch(branch["id"]) for branch in listed)

        # What an active endpoint has used grows between two requests.
        wait_for(one_by_one_they_are_the_same, "the same branches, one by one")


class TestChange:
    @pytest.mark.parametrize(
        ("attributes", "status"),
        [({"name": "x" * 257}, 400), ({"name": "\t"}, 400), ({"protected": "maybe"}, 400)],
    )
    def test_refusals(self, standing: Project, attributes: dict[str, Any], status: int) -> None:
        def named() -> list[Any]:
            branch = standing.branch()
            return [branch[field] for field in ("name", "protected", "updated_at")]

        before = named()
        response = standing.client.call(
            "PATCH", standing.branch_path(), json={"branch": attributes}
        )
        assert refusal(response)[0] == status
        assert named() == before

    @pytest.mark.thorough
    def test_a_name_that_is_taken(self, standing: Project, spare_branch_id: str) -> None:
        body = {"branch": {"name": "main"}}
        path = standing.branch_path(spare_branch_id)
        response = standing.client.call("PATCH", path, json=body)
        assert refusal(response) == (409, 'branch already exists; branch_name:"main"')


class TestSetAsDefault:
    @pytest.mark.thorough
    @pytest.mark.parametrize("action", ["set_as_default", "set_as_primary"])
    def test_it_works(self, project: Project, action: str) -> None:
        child_id = project.new_branch_id()
        body = project.client.post(project.branch_path(child_id, f"/{action}"))
        assert set(body) == {"branch", "operations"}
        assert body["operations"] == []
        assert (body["branch"]["default"], body["branch"]["primary"]) == (True, True)
        assert project.branch()["default"] is False
        grandchild = project.client.post(project.path + "/branches")["branch"]
        assert grandchild["parent_id"] == child_id

    def test_setting_the_default_again_changes_nothing(self, standing: Project) -> None:
        before = standing.branch()
        body = standing.client.post(standing.branch_path(rest="/set_as_default"))
        assert body["branch"] == before

    @pytest.mark.thorough
    def test_a_branch_that_is_still_being_created(self, project: Project) -> None:
        with project.locked():
            branch_id = project.client.post(project.path + "/branches")["branch"]["id"]
            path = project.branch_path(branch_id, "/set_as_default")
            assert refusal(project.client.call("POST", path)) == (422, "branch not ready yet")
        assert project.branch()["default"] is True


class TestDelete:
    @pytest.mark.thorough
    def test_it_works(self, project: Project) -> None:
        made = project.new_branch(endpoint=True, name="gone")
        branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]

        body = project.client.delete(project.branch_path(branch_id))

        assert set(body) == {"branch", "operations"}
        assert body["branch"]["id"] == branch_id
        assert [(o["action"], o["status"]) for o in body["operations"]] == [
            ("suspend_compute", "running"),
            ("delete_timeline", "scheduling"),
        ]
        project.done(body)
        for path in (project.branch_path(branch_id), project.endpoint_path(endpoint_id)):
            assert refusal(project.client.call("GET", path))[0] == 404
        assert not project.stack.data_dir(branch_id).parent.exists()
        assert not project.is_running(endpoint_id)
        assert project.is_running()

    @pytest.mark.thorough
    def test_until_the_deletion_ends_everything_is_listed(self, project: Project) -> None:
        made = project.new_branch(endpoint=True)
        branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
        with project.locked(branch_id):
            first = project.client.delete(project.branch_path(branch_id))
            assert project.branch(branch_id)["id"] == branch_id
            assert project.endpoint(endpoint_id)["pending_state"] == "idle"
            assert project.is_running(endpoint_id)
            again = project.client.delete(project.branch_path(branch_id))
            ids = [[operation["id"] for operation in a["operations"]] for a in (first, again)]
            assert ids[0] == ids[1]
            start = project.client.call("POST", project.endpoint_path(endpoint_id, "/start"))
            assert refusal(start)[0] == 423
        project.done(first)
        gone = project.client.call("DELETE", project.branch_path(branch_id))
        assert refusal(gone) == (404, "branch not found")

    def test_the_default_branch_cannot_be_deleted(self, standing: Project) -> None:
        status, message = refusal(standing.client.call("DELETE", standing.branch_path()))
        assert (status, "default branch cannot be deleted" in message) == (422, True)
        assert standing.branch()["default"] is True

    @pytest.mark.thorough
    def test_a_branch_with_children_cannot_be_deleted(self, project: Project) -> None:
        parent_id = project.new_branch_id()
        child_id = project.new_branch(parent_id=parent_id)["branch"]["id"]
        path = project.branch_path(parent_id)
        status, message = refusal(project.client.call("DELETE", path))
        assert (status, f"the branch has children: {child_id}" in message) == (422, True)
        project.done(project.client.delete(project.branch_path(child_id)))
        project.done(project.client.delete(path))

    @pytest.mark.thorough
    def test_a_protected_branch_cannot_be_deleted(self, project: Project) -> None:
        path = project.branch_path(project.new_branch(protected=True)["branch"]["id"])
        status, message = refusal(project.client.call("DELETE", path))
        assert (status, "protected" in message) == (422, True)
        project.client.patch(path, {"branch": {"protected": False}})
        project.done(project.client.delete(path))

    def test_an_unknown_branch(self, standing: Project) -> None:
        path = standing.branch_path("br-no-where-123456")
        assert refusal(standing.client.call("DELETE", path)) == (404, "branch not found")
