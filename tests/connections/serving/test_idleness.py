"""Unused endpoints are suspended by themselves, and no client loses a connection by it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.selection import first_of
from tests.support.client import Client
from tests.support.place import Place, last_words, serves
from tests.support.processes import standing_still
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def drowsy(stack: Stack, alice: Client) -> Place:
    """An endpoint that is suspended after one second."""
    return Place.create(
        stack, alice, default_endpoint_settings={"suspend_timeout_seconds": 1}, name="drowsy"
    )


def wait_asleep(place: Place) -> None:
    wait_for(lambda: place.state() == "idle", "the endpoint to sleep", timeout=15)


def test_an_unused_endpoint_is_suspended_and_says_so(drowsy: Place) -> None:
    wait_asleep(drowsy)
    operations = drowsy.endpoint_operations()
    assert [row["action"] for row in operations] == ["suspend_compute", "start_compute"]
    assert {row["status"] for row in operations} == {"finished"}
    endpoint = drowsy.endpoint()
    assert endpoint["last_active"] <= endpoint["suspended_at"]
    assert not drowsy.stack.is_running(drowsy.endpoint_id)


@pytest.mark.thorough
def test_a_compute_that_hangs_does_not_keep_another_active(drowsy: Place, place: Place) -> None:
    place.change(suspend_timeout_seconds=1)
    with standing_still([place.postmaster()]):
        assert drowsy.query("SELECT 1") == (1,)
        wait_for(lambda: drowsy.state() == "idle", "the other to sleep", timeout=10)
        assert place.state() == "active"
    wait_asleep(place)


@pytest.mark.thorough
def test_an_idle_connection_does_not_keep_an_endpoint_active(drowsy: Place) -> None:
    with drowsy.connect() as direct, drowsy.connect(pooled=True) as pooled:
        assert serves(direct)
        assert serves(pooled)
        wait_asleep(drowsy)
        assert last_words(direct) == "57P01"
        assert drowsy.pooler() is None
        # The pooled connection stays, and wakes the endpoint.
        assert serves(pooled)


@pytest.mark.thorough
def test_running_queries_and_open_transactions_keep_it_active(drowsy: Place) -> None:
    wait_asleep(drowsy)
    before = len(drowsy.endpoint_operations("suspend_compute"))
    with drowsy.connect() as direct, drowsy.connect(pooled=True) as pooled:
        for connection in (direct, pooled):
            assert connection.execute("SELECT pg_sleep(1.8), 1").fetchone() == ("", 1)
            with connection.transaction():
                connection.execute("SELECT 1")
                wait_past(1.8)
        assert len(drowsy.endpoint_operations("suspend_compute")) == before
        wait_asleep(drowsy)
    last_active = drowsy.endpoint()["last_active"]
    assert last_active > drowsy.endpoint_operations("start_compute")[0]["updated_at"]


def wait_past(seconds: float) -> None:
    """Wait longer than a timeout that must not apply."""
    end = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > end, "time to pass")


@pytest.mark.thorough
def test_a_timeout_of_minus_one_keeps_it_active(drowsy: Place, place: Place) -> None:
    place.change(suspend_timeout_seconds=-1)
    with place.stack.database() as database:
        database.execute(
            "UPDATE controlplane_endpoint SET last_active = now() - interval '1 year',"
            " started_at = now() - interval '1 year' WHERE id = %s",
            [place.endpoint_id],
        )
    wait_asleep(drowsy)
    assert (place.state(), place.endpoint_operations("suspend_compute")) == ("active", [])


def sessions(place: Place) -> Any:
    return place.client.get(place.endpoint_path(rest="/sessions"))


@pytest.mark.parametrize("pooled", first_of([False, True]))
def test_heartbeats_keep_an_endpoint_active_unless_it_ignores_them(
    place: Place, pooled: bool
) -> None:
    with place.connect() as owner:
        owner.execute("CREATE TABLE empty (a int)")
    place.change(suspend_timeout_seconds=4)
    with place.connect(pooled=pooled, application_name="pinger") as pinger:

        def is_suspended_while_asking(statement: str, seconds: float) -> bool:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    pinger.execute(statement.encode())
                except psycopg.OperationalError:
                    return True
                if place.endpoint_operations("suspend_compute"):
                    return True
                time.sleep(0.2)
            return False

        assert not is_suspended_while_asking("SELECT 1", 9)
        (found,) = sessions(place)["sessions"]
        assert (found["state"], found["role"], found["pooled"]) == ("idle", place.role, pooled)
        assert found.get("last_statement") == (None if pooled else "SELECT 1")
        place.change(ignore_heartbeats=True)
        assert not is_suspended_while_asking("SELECT * FROM empty", 9)
        assert is_suspended_while_asking("SELECT 1", 40)
    wait_asleep(place)
    assert sessions(place) == {
        "sessions": [],
        "last_active": place.endpoint()["last_active"],
    }


def test_when_an_endpoint_will_be_suspended_is_known(place: Place) -> None:
    with place.connect() as client:
        client.execute("SELECT 1")
        place.change(suspend_timeout_seconds=3600)
        found = sessions(place)
        suspends_at = datetime.fromisoformat(found["suspends_at"])
        assert suspends_at - datetime.fromisoformat(found["last_active"]) <= timedelta(hours=1)
        assert timedelta(minutes=58) < suspends_at - datetime.now(UTC) <= timedelta(hours=1)
        place.change(suspend_timeout_seconds=-1)
        assert "suspends_at" not in sessions(place)


@pytest.mark.thorough
def test_the_time_of_the_last_activity_is_stored(place: Place) -> None:
    place.make_older(hours=1)
    before = place.endpoint()["last_active"]
    assert place.query("SELECT 1") == (1,)
    wait_for(lambda: place.endpoint()["last_active"] > before, "last_active to be noted")
    assert place.state() == "active"
