"""`GET /projects/{project_id}/connection_uri`: the choice of branch, endpoint, database and
role."""

from typing import Any
from urllib.parse import urlsplit

from tests.support.project import Project, refusal


def uri(project: Project, **query: Any) -> Any:
    asked = {"database_name": "neondb", "role_name": "neondb_owner", **query}
    return urlsplit(project.client.get(f"{project.path}/connection_uri", **asked)["uri"])


def test_it_works(standing: Project) -> None:
    found = uri(standing)
    assert (found.username, found.path) == ("neondb_owner", "/neondb")
    assert standing.endpoint_id in found.geturl()
    for wrong in ({"database_name": "nothing"}, {"role_name": "nobody"}):
        query = {"database_name": "neondb", "role_name": "neondb_owner", **wrong}
        path = f"{standing.path}/connection_uri"
        assert refusal(standing.client.call("GET", path, params=query))[0] == 404


def test_without_its_password(standing: Project) -> None:
    whole, bare = uri(standing), uri(standing, password=False)
    assert whole.password
    assert bare.password is None
    assert whole.geturl().replace(f":{whole.password}@", "@") == bare.geturl()


def test_through_the_pooler(standing: Project) -> None:
    pooled = f"{standing.endpoint_id}-pooler"
    assert pooled in uri(standing, pooled=True).geturl()
    assert pooled not in uri(standing, pooled=False).geturl()


def test_for_another_branch(project: Project) -> None:
    made = project.new_branch(endpoint=True)
    assert made["endpoints"][0]["id"] in uri(project, branch_id=made["branch"]["id"]).geturl()


def test_for_an_endpoint(project: Project) -> None:
    made = project.new_branch(endpoint=True)["endpoints"][0]["id"]
    assert made in uri(project, endpoint_id=made).geturl()
