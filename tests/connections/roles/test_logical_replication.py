"""Logical replication of an endpoint's databases, to any subscriber, through the proxy."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.client import Client
from tests.support.place import Place, environment_of
from tests.support.project import refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

ENABLED = {"project": {"settings": {"enable_logical_replication": True}}}


@pytest.fixture(scope="module")
def publisher(stack: Stack, alice: Client) -> Place:
    """An endpoint of a project that was created with logical replication."""
    made = Place.create(stack, alice, settings={"enable_logical_replication": True})
    with made.connect() as connection:
        connection.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
        connection.execute("INSERT INTO stock VALUES (1, 'perch')")
        connection.execute("CREATE PUBLICATION stock FOR TABLE stock")
    return made


@pytest.fixture
def subscriber() -> Iterator[BarePostgres]:
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as cluster:
        cluster.start()
        cluster.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
        yield cluster


def conninfo(place: Place) -> str:
    """Return a connection string for a Postgres without TLS, for use in an SQL literal."""
    parameters = place.parameters(tls=False)
    names = ("host", "port", "user", "password", "dbname", "options", "sslmode")
    return " ".join(f"{name}=''{parameters[name]}''" for name in names)


def receive(place: Place, *arguments: str, **parameters: Any) -> "subprocess.CompletedProcess[str]":
    wanted = place.parameters(**parameters)
    database = wanted.pop("dbname")
    return subprocess.run(
        ["pg_recvlogical", "--dbname", database, *arguments],
        env={**os.environ, **environment_of(wanted)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_subscriber_continues_after_a_suspend(publisher: Place, subscriber: BarePostgres) -> None:
    subscriber.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{conninfo(publisher)}' PUBLICATION stock"
    )

    def items() -> list[Any]:
        return [item for (item,) in subscriber.execute("SELECT item FROM stock ORDER BY id")]

    try:
        wait_for(lambda: items() == ["perch"], "the existing rows to be copied", timeout=40)
        publisher.query("INSERT INTO stock VALUES (2, 'roach') RETURNING 1")
        wait_for(lambda: items() == ["perch", "roach"], "a row to follow")
        publisher.suspend()
        # The subscriber reconnects by itself.
        wait_for(lambda: publisher.state() == "active", "the subscriber to wake it", timeout=40)
        publisher.query("INSERT INTO stock VALUES (3, 'pike') RETURNING 1")
        wait_for(lambda: items() == ["perch", "roach", "pike"], "a row after the wake", timeout=40)
    finally:
        subscriber.execute("DROP SUBSCRIPTION stock")


@pytest.mark.thorough
@pytest.mark.parametrize("tls", [True, False])
def test_pg_recvlogical_gets_what_is_written(publisher: Place, tls: bool) -> None:
    slot = "plain" if not tls else "tls"
    made = receive(publisher, "--slot", slot, "--plugin", "test_decoding", "--create-slot", tls=tls)
    assert made.returncode == 0, made.stderr
    try:
        publisher.query(f"INSERT INTO stock VALUES ({50 + tls}, '{slot} bream') RETURNING 1")
        end = publisher.query("SELECT pg_current_wal_lsn()")
        got = receive(
            publisher,
            *("--slot", slot, "--start", "--no-loop", "--endpos", end[0], "--file", "-"),
            tls=tls,
        )
        assert got.returncode == 0, got.stderr
        assert f"'{slot} bream'" in got.stdout
    finally:
        publisher.query(f"SELECT pg_drop_replication_slot('{slot}')")


@pytest.mark.parametrize("tls", [True, False])
def test_replication_through_the_pooler_is_refused(publisher: Place, tls: bool) -> None:
    error = publisher.refusal(pooled=True, tls=tls, replication="database")
    assert "replication connections are not supported through the pooler" in str(error)
    assert publisher.is_served(pooled=True, tls=tls, replication="false")


@pytest.mark.thorough
def test_enabling_it_suspends_active_endpoints_and_applies_from_the_next_start(
    place: Place,
) -> None:
    denied = "permission denied to use replication slots"
    make_slot = "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=denied):
        place.query(make_slot)
    asleep = place.new_branch(endpoint=True)["endpoints"][0]["id"]
    place.suspend(asleep)
    answer = place.client.patch(place.path, ENABLED)
    assert [(row["action"], row["endpoint_id"]) for row in answer["operations"]] == [
        ("suspend_compute", place.endpoint_id)
    ]
    place.done(answer)
    assert place.state() == "idle"
    assert place.query("SHOW wal_level") == ("logical",)
    place.query(make_slot)
    place.start(asleep)
    with place.compute(asleep) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    # Enabling it again changes nothing.
    assert place.client.patch(place.path, ENABLED)["operations"] == []
    off = {"project": {"settings": {"enable_logical_replication": False}}}
    assert refusal(place.client.call("PATCH", place.path, json=off))[0] == 422
    # A role that is created later may replicate too, and the slot still exists after a wake.
    place.new_role("bob")
    # Beside it there is the slot of the branch's history.
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'mine'"
    query = f"SELECT rolreplication, ({slots}) FROM pg_roles WHERE rolname = 'bob'"
    place.suspend()
    assert place.query(query) == (True, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("running", [True, False])
def test_a_child_has_none_of_its_parents_slots(publisher: Place, running: bool) -> None:
    name = f"kept_{running}".lower()
    publisher.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    if not running:
        publisher.suspend()
    child = publisher.new_branch(endpoint=True)["endpoints"][0]["id"]
    with publisher.compute(child) as connection:
        # Its history has a physical one.
        slots = "SELECT FROM pg_replication_slots WHERE slot_type = 'logical'"
        assert connection.execute(slots).rowcount == 0
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    publisher.query(f"SELECT pg_drop_replication_slot('{name}')")


@pytest.mark.thorough
def test_a_subscriber_keeps_it_active(publisher: Place, subscriber: BarePostgres) -> None:
    publisher.change(suspend_timeout_seconds=1)
    wait_for(lambda: publisher.state() == "idle", "it to sleep", timeout=15)
    subscriber.execute(
        f"CREATE SUBSCRIPTION awake CONNECTION '{conninfo(publisher)}'"
        " PUBLICATION stock WITH (copy_data = off)"
    )
    try:
        streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        wait_for(lambda: publisher.sql(streaming) == [(1,)], "the subscriber to stream")
        looked = publisher.endpoint()["last_active"]
        # The platform has checked several times since, and found it in use.
        wait_for(lambda: publisher.endpoint()["last_active"] > looked, "a look", timeout=15)
        looked = publisher.endpoint()["last_active"]
        wait_for(lambda: publisher.endpoint()["last_active"] > looked, "another", timeout=15)
        assert publisher.state() == "active"
    finally:
        subscriber.execute("DROP SUBSCRIPTION awake")
    wait_for(lambda: publisher.state() == "idle", "it to sleep again", timeout=30)
    publisher.change(suspend_timeout_seconds=0)


@pytest.mark.thorough
def test_slots_cannot_fill_the_disk(publisher: Place) -> None:
    assert publisher.query("SHOW max_slot_wal_keep_size") == ("2GB",)
    wrong = {"settings": {"pg_settings": {"max_slot_wal_keep_size": "-1"}}}
    body = {"endpoint": wrong}
    response = publisher.client.call("PATCH", publisher.endpoint_path(), json=body)
    assert "belongs to the platform" in refusal(response)[1]


@pytest.mark.thorough
def test_an_owner_makes_roles_that_replicate_if_the_project_does(publisher: Place) -> None:
    """Such a role streams changes, and cannot copy the cluster."""
    with publisher.connect() as connection:
        connection.execute("CREATE ROLE streams LOGIN REPLICATION PASSWORD 'streams'")
    login: Any = {"user": "streams", "password": "streams"}
    path = publisher.of_catalog("roles", "streams")
    wait_for(lambda: publisher.client.call("GET", path).ok, "the role to be taken in")
    options = ("--slot", "streams", "--plugin", "test_decoding")
    made = receive(publisher, "--create-slot", *options, **login)
    assert made.returncode == 0, made.stderr
    assert receive(publisher, "--drop-slot", "--slot", "streams", **login).returncode == 0
    json = ("--create-slot", "--slot", "json", "--plugin", "wal2json")
    assert "output_plugin_libraries" in receive(publisher, *json, **login).stderr
    publisher.change(settings={"pg_settings": {"output_plugin_libraries": "pgoutput, wal2json"}})
    assert 'could not access file "wal2json"' in receive(publisher, *json, **login).stderr
    copied = subprocess.run(
        ["pg_basebackup", "--pgdata", "/nowhere"],
        env={**os.environ, **environment_of(publisher.parameters(**login))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "replication" in copied.stderr
