"""Availability checks run by themselves, prove that the data is intact, and disturb no client."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.place import Place, serves
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Hours before the next check, by the number of checks since the endpoint was last used.
PAUSES = {0: 2, 1: 2, 2: 4, 6: 24}


def checks(place: Place) -> list[Any]:
    return place.endpoint_operations("check_availability")


def wait_checked(place: Place, *, times: int = 1) -> Any:
    wait_for(lambda: len(checks(place)) >= times, "a check to come", timeout=20)
    place.settle()
    return checks(place)[0]


@pytest.mark.thorough
def test_checks_run_when_due_and_change_nothing(stack: Stack, alice: Client) -> None:
    asleep, awake, disabled, fresh = (Place.create(stack, alice, name=f"p{n}") for n in range(4))
    asleep.suspend()
    disabled.change(disabled=True)
    with awake.connect() as connection:
        # In this order: once the last is checked, the others have been considered.
        for place, hours in ((disabled, 30), (fresh, 1.9), (asleep, 2.1), (awake, 2.1)):
            place.make_older(hours=hours)
        for place in (asleep, awake):
            check = wait_checked(place)
            assert (check["status"], check["failures_count"]) == ("finished", 0)
            assert check["branch_id"] == place.branch_id
        assert serves(connection)
    assert (asleep.state(), awake.state()) == ("idle", "active")
    assert not stack.is_running(asleep.endpoint_id)
    assert len(asleep.endpoint_operations("suspend_compute")) == 1
    assert (checks(disabled), checks(fresh)) == ([], [])
    assert disabled.state() == "idle"


CHECK = """
INSERT INTO controlplane_operation SELECT (made).* FROM (
    SELECT jsonb_populate_record(o, jsonb_build_object(
        'id', gen_random_uuid(), 'created_at', now(), 'action', 'check_availability')) AS made
    FROM controlplane_operation o
    WHERE endpoint_id = %s AND action = 'start_compute' LIMIT 1
) copied
"""


def add_checks(place: Place, count: int) -> None:
    """Record checks that were just made, since the endpoint was used."""
    with place.stack.database() as database:
        for _ in range(count):
            database.execute(CHECK, [place.endpoint_id])


@pytest.mark.thorough
def test_the_interval_between_checks_grows_to_a_day(stack: Stack, alice: Client) -> None:
    places = {count: Place.create(stack, alice) for count in PAUSES}
    for count, place in places.items():
        place.suspend()
        add_checks(place, count)
        place.make_older(hours=PAUSES[count] - 0.1)
    beside = Place.create(stack, alice)
    beside.make_older(hours=3)
    wait_checked(beside)
    assert [len(checks(place)) for place in places.values()] == list(PAUSES)
    # After a use, it begins anew.
    beside.suspend()
    add_checks(beside, 4)
    assert beside.query("SELECT 1") == (1,)
    for place in (*places.values(), beside):
        place.make_older(hours=2.1 if place is beside else 0.2)
    for count, place in (*places.items(), (5, beside)):
        wait_checked(place, times=count + 1)


def test_a_branch_without_an_endpoint_is_not_checked(place: Place) -> None:
    place.new_branch_id(name="dev")
    with place.stack.database() as database:
        database.execute("UPDATE controlplane_branch SET created_at = now() - interval '3 hours'")
    place.make_older(hours=3)
    wait_checked(place)
    found = place.client.get(f"{place.path}/operations", limit=1000)["operations"]
    checked = [row["branch_id"] for row in found if row["action"] == "check_availability"]
    assert checked == [place.branch_id]


@contextlib.contextmanager
def flipped(path: Path) -> Iterator[None]:
    """Flip one bit in the first page of a file while the block lasts."""
    sound = path.read_bytes()
    path.write_bytes(sound[:2000] + bytes([sound[2000] ^ 1]) + sound[2001:])
    yield
    path.write_bytes(sound)


@pytest.mark.thorough
def test_damage_is_found_and_reported(stack: Stack, alice: Client) -> None:
    broken, damaged = Place.create(stack, alice), Place.create(stack, alice)
    row = damaged.query("SELECT pg_relation_filepath('pg_catalog.pg_attribute')")
    for place in (broken, damaged):
        place.suspend()
        place.make_older(hours=3)
    control = stack.data_dir(broken.branch_id) / "global" / "pg_control"
    aside = control.rename(control.with_suffix(".aside"))
    with flipped(stack.data_dir(damaged.branch_id) / row[0]):
        for place, reason in (
            (broken, "could not find the database system"),
            (damaged, "invalid page in block"),
        ):
            wait_for(lambda place=place: checks(place), "a check", timeout=20)  # type: ignore[misc]
            place.settle()
            check = checks(place)[0]
            assert check["status"] == "failed"
            assert reason in check["error"]
            assert place.state() == "idle"
    aside.rename(control)
    for place in (broken, damaged):
        assert place.query("SELECT 1") == (1,)


@pytest.mark.thorough
def test_a_check_that_gets_no_answer_ends_no_running_compute(place: Place) -> None:
    """As on a host that is too busy for Postgres to answer in time."""
    with place.connect() as connection:
        postmaster = place.postmaster()
        # Once a check is under way, no other operation looks after a silent compute.
        with place.locked():
            place.make_older(hours=3)
            wait_for(lambda: checks(place), "a check to come", timeout=20)
            postmaster.suspend()
        try:
            wait_for(lambda: checks(place)[0]["failures_count"], "a failed attempt", timeout=60)
        finally:
            postmaster.resume()
        place.settle()
        assert serves(connection)
    assert [row["status"] for row in checks(place)] == ["finished"]
    assert (place.state(), place.postmaster()) == ("active", postmaster)


@pytest.mark.thorough
def test_clients_that_connect_during_a_check_are_served_and_stay(place: Place) -> None:
    place.suspend()
    place.make_older(hours=3)
    wait_for(lambda: checks(place), "a check to come", timeout=20)
    with place.connect() as direct, place.connect(pooled=True) as pooled:
        place.settle()
        assert serves(direct)
        assert serves(pooled)
    assert [row["status"] for row in checks(place)] == ["finished"]
    assert place.state() == "active"
