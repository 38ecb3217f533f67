"""Replication from an endpoint on another host than the proxy that the subscriber connects to."""

from pathlib import Path
from typing import Any

import psycopg

from tests.connections.test_logical_replication import conninfo, receive
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.client import Client
from tests.support.place import Place
from tests.support.second_host import NAME, placing_on, second_host
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def test_replication_passes_through_another_hosts_proxy(
    stack: Stack, alice: Client, state_dir: Path
) -> None:
    with second_host(stack, state_dir) as second:
        with placing_on(stack, NAME):
            settings = {"enable_logical_replication": True}
            created = Place.create(second.stack, alice, settings=settings).created
        # As clients reach it by the first host's proxy.
        place = Place(stack, alice, created)
        wait_for(place.is_served, "the first host's proxy to reach the second host")
        with place.connect() as connection:
            connection.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
            connection.execute("INSERT INTO stock VALUES (1, 'perch')")
            connection.execute("CREATE PUBLICATION stock FOR TABLE stock")
        _streams(place)
        with private_directory() as scratch, bare_postgres(Programs(scratch)) as subscriber:
            subscriber.start()
            _is_followed(place, subscriber)
        alice.delete(place.path)


def _streams(place: Place) -> None:
    """A walsender answers, and streams what is written."""
    with psycopg.connect(**place.parameters(replication="database"), autocommit=True) as sender:
        (system, *_) = sender.execute("IDENTIFY_SYSTEM").fetchone() or ("",)
        assert place.query("SELECT system_identifier FROM pg_control_system()") == (int(system),)
    slot = "across"
    made = receive(place, "--slot", slot, "--plugin", "test_decoding", "--create-slot")
    assert made.returncode == 0, made.stderr
    place.query("INSERT INTO stock VALUES (2, 'roach') RETURNING 1")
    end = place.query("SELECT pg_current_wal_lsn()")
    arguments = ("--slot", slot, "--start", "--no-loop", "--endpos", end[0], "--file", "-")
    got = receive(place, *arguments)
    assert got.returncode == 0, got.stderr
    assert "'roach'" in got.stdout
    place.query(f"SELECT pg_drop_replication_slot('{slot}')")


def _is_followed(place: Place, subscriber: BarePostgres) -> None:
    """By a subscriber, also after the endpoint has slept."""

    def items() -> list[Any]:
        return [item for (item,) in subscriber.execute("SELECT item FROM stock ORDER BY id")]

    subscriber.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
    subscriber.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{conninfo(place)}' PUBLICATION stock"
    )
    try:
        wait_for(lambda: items() == ["perch", "roach"], "the existing rows", timeout=40)
        place.query("INSERT INTO stock VALUES (3, 'pike') RETURNING 1")
        wait_for(lambda: len(items()) == 3, "a row to follow", timeout=40)
        place.suspend()
        wait_for(lambda: place.state() == "active", "the subscriber to wake it", timeout=60)
        place.query("INSERT INTO stock VALUES (4, 'bream') RETURNING 1")
        wait_for(lambda: len(items()) == 4, "a row after the wake", timeout=60)
    finally:
        subscriber.execute("DROP SUBSCRIPTION stock")
