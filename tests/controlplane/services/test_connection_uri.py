"""Connection strings: the choice of branch, endpoint, database and role, by the region's address
and the proxy's TLS settings."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from controlplane.models import Database, Endpoint, Region, Role
from controlplane.models import Project as ProjectRow
from controlplane.services.connections import connection_to
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


def test_several_at_once_are_one_event(standing: Project) -> None:
    made = standing.client.post(standing.branch_path(rest="/roles"), {"role": {"name": "herd"}})
    role = made["role"]["name"]
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: uri(standing, role_name=role), range(24)):
            pass
    path = f"{standing.path}/events?type=role.password_revealed"
    events = standing.client.get(path)["events"]
    assert len([one for one in events if role in one["summary"]]) == 1


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


def uri_at(address: str, *, pooled: bool = False) -> str:
    region = Region(id="here", host=address, port=6432)
    endpoint = Endpoint(id="ep-a-b-1", project=ProjectRow(region=region))
    return connection_to(
        endpoint, Role(name="ann"), Database(name="shop"), password="p@", pooled=pooled
    ).uri


def test_on_this_machine_tls_is_left_to_the_driver() -> None:
    uri = "postgresql://ann:p%40@localhost:6432/shop?options=endpoint%3Dep-a-b-1"
    assert uri_at("localhost") == uri_at("dev.localhost") == uri
    assert uri_at("localhost", pooled=True) == f"{uri}-pooler"


@pytest.mark.parametrize("allowed", ["loopback", "always", "never"])
def test_on_another_host_tls_is_required(settings: Any, allowed: str) -> None:
    settings.PROXY_PLAIN_CONNECTIONS = allowed
    uri = uri_at("db.example.com", pooled=True)
    assert uri == "postgresql://ann:p%40@ep-a-b-1-pooler.db.example.com:6432/shop?sslmode=require"


def test_tls_is_required_if_the_proxy_requires_it(settings: Any) -> None:
    settings.PROXY_PLAIN_CONNECTIONS = "never"
    uri = uri_at("localhost")
    assert uri.endswith("@localhost:6432/shop?sslmode=require&options=endpoint%3Dep-a-b-1")
