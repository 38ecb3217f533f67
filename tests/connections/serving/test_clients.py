"""Real clients with only a connection string, at an active or idle endpoint."""

import pytest

from tests.selection import first_of
from tests.support.place import Place

QUESTION = "SELECT current_user || ' ' || 6 * 7"


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("tls", first_of([False, True]), ids=["plain", "tls"])
def test_a_client_is_served_by_an_idle_and_by_an_active_endpoint(
    shop: Place, tls: bool, pooled: bool
) -> None:
    shop.suspend()
    for _ in ("asleep", "awake"):
        assert shop.query(QUESTION, tls=tls, pooled=pooled) == (f"{shop.role} 42",)
    assert shop.state() == "active"


@pytest.mark.parametrize("channel_binding", ["require", "disable"])
def test_psql_needs_only_the_connection_string(shop: Place, channel_binding: str) -> None:
    query = {"database_name": shop.database, "role_name": shop.role, "pooled": True}
    uri = shop.client.get(f"{shop.path}/connection_uri", **query)["uri"]
    done = shop.psql(
        f"{uri}&channel_binding={channel_binding}", "-c", QUESTION, host="", hostaddr="", dbname="x"
    )
    assert (done.stdout, done.stderr) == (f"{shop.role} 42\n", "")


@pytest.mark.thorough
def test_the_connection_string_leads_to_the_requested_database(place: Place) -> None:
    branch = place.new_branch_id(name="dev")
    path, query = (
        f"{place.path}/connection_uri",
        {"database_name": place.database, "role_name": place.role},
    )
    host = f"localhost:{place.stack.proxy_port}/{place.database}"
    login = f"postgresql://{place.role}:{place.password}@"
    direct = f"{login}{host}?options=endpoint%3D{place.endpoint_id}"
    for asked in ({}, {"branch_id": place.branch_id}, {"endpoint_id": place.endpoint_id}):
        assert place.client.get(path, **query, **asked)["uri"] == direct
    pooled = place.client.get(path, **query, pooled="true")["uri"]
    assert pooled == direct.replace(place.endpoint_id, f"{place.endpoint_id}-pooler")
    for asked in (
        {"branch_id": branch},
        {"branch_id": "br-none"},
        {"endpoint_id": "ep-none"},
        {"role_name": "nobody"},
        {"database_name": "none"},
        {"endpoint_id": place.endpoint_id, "branch_id": branch},
    ):
        assert place.client.call("GET", path, params={**query, **asked}).status_code == 404
