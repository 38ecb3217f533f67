"""Neon's serverless driver, unmodified: over HTTP and WebSocket, with an active and an idle
endpoint, with and without verified TLS."""

from urllib.parse import quote

import pytest

from tests.clients import nodejs
from tests.selection import first_of
from tests.support.place import Place
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("node")


def driver(
    place: Place, *arguments: str, secure: bool = True, pooled: bool = False, **changes: str
) -> None:
    """Returns a function that runs `serverless.mjs` with these arguments."""
    name = place.endpoint_id + ("-pooler" if pooled else "")
    password = quote(place.password, safe="")
    ran = nodejs.run(
        "node",
        nodejs.HERE / "serverless.mjs",
        *arguments,
        environment={
            "DATABASE_URL": f"postgresql://{place.role}:{password}@{name}.localhost"
            f"/{place.database}?sslmode=require",
            "PROXY": f"localhost:{place.stack.proxy_port}",
            "SECURE": "yes" if secure else "no",
            "NODE_EXTRA_CA_CERTS": str(place.stack.state_dir / "tls" / "authority.pem"),
            **changes,
        },
    )
    assert ran.status == 0, ran.told + ran.output


@pytest.mark.parametrize("pooled", first_of([False, True]))
@pytest.mark.parametrize(
    "what", first_of(["queries", "types", "transactions", "errors", "refusals"], count=2)
)
def test_all_kinds_of_queries(shop: Place, what: str, pooled: bool) -> None:
    driver(shop, what, pooled=pooled)


@pytest.mark.parametrize(
    "what", first_of(["sessions", "poolsOverHttp", "proxiesByName", "byHostName"], count=2)
)
@pytest.mark.parametrize("secure", first_of([False, True]))
def test_sessions_over_websocket(shop: Place, what: str, secure: bool) -> None:
    driver(shop, what, secure=secure)


@pytest.mark.parametrize("way", ["http", "ws"])
@pytest.mark.parametrize("pooled", first_of([False, True]))
def test_a_hundred_simultaneous_queries(shop: Place, way: str, pooled: bool) -> None:
    driver(shop, "crowd", way, pooled=pooled)


@pytest.mark.parametrize("way", ["http", "ws"])
@pytest.mark.parametrize("pooled", first_of([False, True]))
def test_each_transport_wakes_an_idle_endpoint(shop: Place, way: str, pooled: bool) -> None:
    shop.suspend()
    driver(shop, "plainly", way, pooled=pooled)
    assert shop.state() == "active"
    before = shop.endpoint()["last_active"]

    def is_noted() -> bool:
        # A use in the same second as `before` would not be visible.
        driver(shop, "plainly", way, pooled=pooled)
        return bool(shop.endpoint()["last_active"] > before)

    wait_for(is_noted, "the endpoint's use to be noted")


@pytest.mark.parametrize("way", ["http", "ws"])
def test_a_connection_string_of_the_api_unchanged(shop: Place, way: str) -> None:
    uri = shop.created["connection_uris"][0]["connection_uri"]
    driver(shop, "plainly", way, DATABASE_URL=uri)


def test_a_new_password_is_valid_at_once_and_the_old_one_no_longer(shop: Place) -> None:
    driver(shop, "plainly", "http")
    old = shop.password
    path = shop.of_catalog("roles", shop.role)
    reset = shop.client.post(f"{path}/reset_password")
    shop.client.finish(reset)
    shop.password = reset["role"]["password"]
    driver(shop, "plainly", "http")
    uri = f"postgresql://{shop.role}:{old}@{shop.endpoint_id}.localhost/{shop.database}"
    with pytest.raises(AssertionError, match="password authentication failed"):
        driver(shop, "plainly", "http", DATABASE_URL=uri)


def test_a_reassigned_endpoint_answers_from_its_new_branch(shop: Place) -> None:
    """No session of the previous branch's compute is used again."""
    driver(shop, "transactions")
    parent = shop.branch_id
    branch = shop.done(shop.client.post(f"{shop.path}/branches"))["branch"]["id"]
    for to in (branch, parent):
        shop.done(shop.client.patch(shop.endpoint_path(), {"endpoint": {"branch_id": to}}))
        driver(shop, "transactions")
