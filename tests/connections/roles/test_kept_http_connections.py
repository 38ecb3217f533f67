"""A client that sends one request after the other over one HTTP connection is admitted anew each
time, though the proxy asks nobody about most requests: what changes takes effect."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import requests

from controlplane.proxy.over_http.session_pool import MAX_AGE
from tests.support.place import Place
from tests.support.waiting import load, wait_for

RULES = {"allowed_ips": {"ips": ["192.0.2.0/24"]}}
# Seconds in which a route may be used again.
RECENT = 1.0


class Caller:
    """Of the endpoint as the role bob, or as another one."""

    def __init__(self, place: Place, password: str, role: str = "bob") -> None:
        self.url = f"http://127.0.0.1:{place.stack.proxy_port}/sql"
        host = f"{place.endpoint_id}.localhost"
        self.string = f"postgresql://{role}:{quote(password, safe='')}@{host}/{place.database}"
        self.session = requests.Session()

    def ask(self, query: str = "SELECT current_user AS me") -> Any:
        """Return the first row, or the error's code."""
        answer = self.session.post(
            self.url,
            json={"query": query},
            headers={"Neon-Connection-String": self.string},
            timeout=30 * load(),
        ).json()
        return answer["rows"][0] if "rows" in answer else answer["code"]


def allow_elsewhere(place: Place) -> None:
    with place.stack.database() as database:
        database.execute(
            "UPDATE controlplane_project SET settings = %s WHERE id = %s",
            [json.dumps(RULES), place.id],
        )


# By the API, of which the proxy is told.
TOLD: dict[str, tuple[Callable[[Place], Any], str]] = {
    "password": (
        lambda place: place.client.finish(
            place.client.post(f"{place.of_catalog('roles', 'bob')}/reset_password")
        ),
        "28P01",
    ),
    "deleted": (
        lambda place: place.client.finish(place.client.delete(place.of_catalog("roles", "bob"))),
        "28P01",
    ),
    "addresses": (allow_elsewhere, ""),
    "disabled": (lambda place: place.change(disabled=True), ""),
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_the_api_changes_ends_a_kept_connections_admission(place: Place, kind: str) -> None:
    caller = Caller(place, place.new_role("bob"))
    for _ in range(3):
        assert caller.ask() == {"me": "bob"}
    happens, code = TOLD[kind]
    happens(place)
    wait_for(lambda: isinstance(caller.ask(), str), "the refusal", timeout=5)
    for _ in range(3):
        refused = caller.ask()
        assert isinstance(refused, str)
        assert not code or refused == code


@pytest.mark.parametrize("statement", ["NOLOGIN", "PASSWORD 'new'", "DROP"])
def test_what_sql_changes_does_so_within_a_second(place: Place, statement: str) -> None:
    with place.connect() as owner:
        owner.execute("CREATE ROLE ann LOGIN PASSWORD 'old'")
        caller = Caller(place, "old", "ann")
        for _ in range(3):
            assert caller.ask() == {"me": "ann"}
        sql = "DROP ROLE ann" if statement == "DROP" else f"ALTER ROLE ann {statement}"
        owner.execute(sql.encode())
    if "new" in statement:  # at once
        assert Caller(place, "new", "ann").ask() == {"me": "ann"}
    wait_for(lambda: caller.ask() == "28P01", "the refusal", timeout=RECENT + 0.5 * load())
    assert caller.ask() == "28P01"


@pytest.mark.thorough
def test_a_role_that_may_not_connect_any_more_is_refused_though_it_asks_all_the_time(
    place: Place,
) -> None:
    with place.connect() as owner:
        owner.execute("CREATE ROLE ann LOGIN PASSWORD 'old'")
        caller = Caller(place, "old", "ann")
        assert caller.ask() == {"me": "ann"}
        owner.execute(f'REVOKE CONNECT ON DATABASE "{place.database}" FROM PUBLIC'.encode())
    wait_for(lambda: caller.ask() == "42501", "the refusal", timeout=MAX_AGE + 2)


def test_a_kept_connection_wakes_a_suspended_endpoint(place: Place) -> None:
    caller = Caller(place, place.password, place.role)
    started = "SELECT pg_postmaster_start_time()::text AS at"
    first = caller.ask(started)
    assert caller.ask(started) == first
    for _ in range(2):
        place.suspend()
        second = caller.ask(started)
        assert second["at"] > first["at"]
        assert caller.ask(started) == second
        first = second
