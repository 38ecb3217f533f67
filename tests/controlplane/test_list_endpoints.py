"""GET /projects/{project_id}/endpoints and one of them (specification, call 2 and rule 4)."""

import pytest

from tests.controlplane.fields import ENDPOINT, ENDPOINT_AT_TIMES, assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal, wanted


def test_it_works(project: Project) -> None:
    other = project.create_endpoint(project.new_branch_id())["endpoint"]

    body = project.client.get(project.path + "/endpoints")

    assert set(body) == {"endpoints"}
    assert [endpoint["id"] for endpoint in body["endpoints"]] == [project.endpoint_id, other["id"]]
    for endpoint in body["endpoints"]:
        assert_fields(endpoint, ENDPOINT, ENDPOINT_AT_TIMES)
        assert "last_active" in endpoint


@pytest.mark.thorough
def test_last_active_is_absent_before_the_first_activity(project: Project) -> None:
    project.create_endpoint(project.new_branch_id(), disabled=True)
    assert ["last_active" in endpoint for endpoint in project.endpoints()] == [True, False]


def test_the_pending_state_is_returned_for_one_endpoint_but_not_in_lists(project: Project) -> None:
    with project.locked():
        answer = project.client.post(project.endpoint_path(rest="/suspend"))
        assert answer["endpoint"]["pending_state"] == "idle"
        assert project.endpoint()["pending_state"] == "idle"
        assert "pending_state" not in project.endpoints()[0]
    project.done(answer)
    assert "pending_state" not in project.endpoint()


def test_deleted_endpoints_are_not_listed(project: Project) -> None:
    project.client.delete(project.endpoint_path())
    assert project.endpoints() == []
    response = project.client.call("GET", project.endpoint_path())
    assert refusal(response) == (404, "endpoint not found")


@pytest.mark.thorough
def test_a_branch_lists_its_endpoint(project: Project) -> None:
    branch = project.new_branch(endpoint=True)
    path = project.branch_path(branch["branch"]["id"], "/endpoints")
    listed = project.client.get(path)["endpoints"]
    assert [endpoint["id"] for endpoint in listed] == [branch["endpoints"][0]["id"]]
    assert_fields(listed[0], ENDPOINT, ENDPOINT_AT_TIMES)
    assert "pending_state" not in listed[0]


@pytest.mark.thorough
def test_a_branch_without_an_endpoint_lists_none(standing: Project, spare_branch_id: str) -> None:
    path = standing.branch_path(spare_branch_id, "/endpoints")
    assert standing.client.get(path) == {"endpoints": []}


def test_unknown_ids(standing: Project, alice: Client) -> None:
    refusals = {
        "/projects/no-where-12345678/endpoints": "project not found",
        standing.endpoint_path("ep-no-where-123456"): "endpoint not found",
        standing.branch_path("br-no-where-123456", "/endpoints"): "branch not found",
    }
    for path, message in refusals.items():
        assert refusal(standing.client.call("GET", path)) == (404, message)


def test_another_projects_endpoint_is_not_found(standing: Project, alice: Client) -> None:
    own = standing.client.new_project(wait=False)
    path = f"/projects/{own['project']['id']}/endpoints/{standing.endpoint_id}"
    assert refusal(standing.client.call("GET", path)) == (404, "endpoint not found")
    body = wanted(own["branch"]["id"])
    response = standing.client.call("PATCH", standing.endpoint_path(), json=body)
    assert refusal(response) == (404, "branch not found")
