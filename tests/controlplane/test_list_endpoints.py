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


def test_the_pending_state_is_returned_for_one_endpoint_but_not_in_lists(project: Project) -> None:
    with project.locked():
        answer = project.client.post(project.endpoint_path(rest="/suspend"))
        assert answer["endpoint"]["pending_state"] == "idle"
        assert project.endpoint()["pending_state"] == "idle"
        assert "pending_state" not in project.endpoints()[0]
    project.done(answer)
    assert "pending_state" not in project.endpoint()


@pytest.mark.thorough
def test_a_branch_lists_its_endpoint(project: Project) -> None:
    branch = project.new_branch(endpoint=True)
    path = project.branch_path(branch["branch"]["id"], "/endpoints")
    listed = project.client.get(path)["endpoints"]
    assert [endpoint["id"] for endpoint in listed] == [branch["endpoints"][0]["id"]]
    assert_fields(listed[0], ENDPOINT, ENDPOINT_AT_TIMES)
    assert "pending_state" not in listed[0]


def test_another_projects_endpoint_is_not_found(standing: Project, alice: Client) -> None:
    own = standing.client.new_project(wait=False)
    path = f"/projects/{own['project']['id']}/endpoints/{standing.endpoint_id}"
    assert refusal(standing.client.call("GET", path)) == (404, "endpoint not found")
    body = wanted(own["branch"]["id"])
    response = standing.client.call("PATCH", standing.endpoint_path(), json=body)
    assert refusal(response) == (404, "branch not found")
