"""A project's address rules apply in every process of the proxy, and certificates can be verified
with the authority that the API publishes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from tests.support.place import Connection, Place, last_words, serves
from tests.support.stack import Stack
from tests.support.waiting import wait_for

ELSEWHERE = {"allowed_ips": {"ips": ["192.0.2.0/24"]}}
# More than the processes of the proxy, whichever process each connection reaches.
MANY = 12


def allow(place: Place, settings: dict[str, Any]) -> None:
    with place.stack.database() as database:
        database.execute(
            "UPDATE controlplane_project SET settings = %s WHERE id = %s",
            [json.dumps(settings), place.id],
        )


def protect(place: Place, protected: bool) -> None:
    with place.stack.database() as database:
        database.execute(
            "UPDATE controlplane_branch SET protected = %s WHERE id = %s",
            [protected, place.branch_id],
        )


@pytest.fixture
def connections(place: Place) -> Iterator[list[Connection]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(place.connect(pooled=number % 2 == 0, tls=number % 3 == 0))
            for number in range(MANY)
        ]


@pytest.mark.thorough
def test_new_connections_from_other_addresses_are_refused_and_open_ones_end(
    place: Place, connections: list[Connection]
) -> None:
    assert all(map(serves, connections))
    allow(place, ELSEWHERE)
    assert {last_words(connection) for connection in connections} == {"57P01"}
    for _ in range(MANY):
        words = str(place.refusal())
        assert "This IP address 127.0.0.1 is not allowed to connect to this endpoint." in words
    assert "127.0.0.1 is not allowed" in str(place.refusal(password="wrong"))
    allow(place, {"allowed_ips": {"ips": ["192.0.2.0/24", "127.0.0.1"]}})
    wait_for(place.is_served, "the new rule")
    assert place.is_served()


def test_allowed_clients_stay_connected(place: Place, connections: list[Connection]) -> None:
    allow(place, {"allowed_ips": {"ips": ["127.0.0.0/8"]}, "block_public_connections": True})
    wait_for(place.is_served, "the rule")
    assert all(map(serves, connections))


@pytest.mark.thorough
def test_a_rule_for_protected_branches_applies_once_a_branch_is_protected(place: Place) -> None:
    allow(place, {"allowed_ips": {**ELSEWHERE["allowed_ips"], "protected_branches_only": True}})
    with place.connect() as connection:
        assert serves(connection)
        protect(place, True)
        assert last_words(connection) == "57P01"
        assert "is not allowed" in str(place.refusal())
    protect(place, False)
    wait_for(place.is_served, "the branch to be open again")


@pytest.mark.thorough
def test_refusals_are_recorded_as_events(place: Place) -> None:
    allow(place, ELSEWHERE)
    for user in (place.role, "hunter2"):
        assert "is not allowed" in str(place.refusal(user=user))

    def refusals() -> list[Any]:
        query = {"type": "connection.not_allowed", "endpoint_id": place.endpoint_id}
        found: list[Any] = place.client.get("/events", **query)["events"]
        return found

    wait_for(lambda: len(refusals()) >= 2, "the events")
    assert {event["actor"]["name"] for event in refusals()} == {place.role, ""}
    assert {event["actor"]["address"] for event in refusals()} == {"127.0.0.1"}
    assert "the address is not allowed" in refusals()[0]["summary"]
    assert "hunter2" not in str(refusals())


@pytest.mark.thorough
def test_the_api_publishes_the_authority_for_verifying_clients(
    stack: Stack, shop: Place, tmp_path: Path
) -> None:
    url = stack.api_url.replace("/api/v2", "/certificate-authority.pem")
    answer = requests.get(url, timeout=10)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-pem-file")
    assert requests.post(url, timeout=10).status_code == 405
    file = tmp_path / "authority.pem"
    file.write_text(answer.text)
    for pooled in (False, True):
        connection = shop.connect(pooled=pooled, sslmode="verify-full", sslrootcert=str(file))
        with connection:
            assert serves(connection)
    uri = shop.client.get(
        f"{shop.path}/connection_uri", database_name=shop.database, role_name=shop.role
    )["uri"]
    verified = uri.replace("sslmode=require", f"sslmode=verify-full&sslrootcert={file}")
    with psycopg.connect(verified) as connection:
        assert serves(connection)
    printed = subprocess.run(
        [sys.executable, "manage.py", "certificate_authority"],
        env={**os.environ, "PERCH_STATE_DIR": str(stack.state_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == answer.text
