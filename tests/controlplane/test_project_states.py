"""`GET /projects/states`: the states of an account's projects, as a few numbers."""

from tests.support.project import Project
from tests.support.stack import Stack


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
