"""Usage is counted once, and an outage is not counted, whichever process is killed."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.place import Place
from tests.support.service import Service
from tests.support.waiting import wait_for

MEGABYTE = 1_000_000


@pytest.fixture
def service(state_dir: Path) -> Iterator[Service]:
    made = Service(state_dir)
    yield made
    made.down()


def place_in(service: Service) -> Place:
    return Place.create(service.stack, service.client)


def consumed(place: Place) -> Any:
    return place.client.get(place.path)["project"]


def write(place: Place, megabytes: int) -> None:
    with place.compute() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (data text)")
        connection.execute(
            "INSERT INTO written SELECT string_agg(md5(random()::text), '')"
            " FROM generate_series(1, %s) n, generate_series(1, 31) GROUP BY n",
            [megabytes * 1000],
        )


@pytest.mark.thorough
def test_an_outage_of_the_host_is_not_counted(service: Service) -> None:
    place = place_in(service)
    write(place, 5)
    before, looked_at = consumed(place)["active_time_seconds"], time.monotonic()
    service.kill_everything()
    killed_at = time.monotonic()
    wait_for(lambda: time.monotonic() - killed_at > 10, "a longer outage")
    service.up()
    place.stack = service.stack
    wait_for(lambda: place.state() == "idle", "its end to be noticed")
    # It was last seen a little before it was killed.
    ran = before + (killed_at - looked_at)
    assert ran - 10 <= consumed(place)["active_time_seconds"] <= ran + 2
    # The log was not measured before the outage.
    place.start()
    place.suspend()
    written = consumed(place)["written_data_bytes"]
    assert 5 * MEGABYTE < written < 15 * MEGABYTE
    place.start()
    place.suspend()
    assert consumed(place)["written_data_bytes"] < written + MEGABYTE


@pytest.mark.thorough
def test_usage_is_not_counted_twice_when_a_worker_is_killed(service: Service) -> None:
    place = place_in(service)
    write(place, 5)
    service.kill("worker")
    write(place, 5)
    wait_for(service.answers, "another worker")
    place.suspend()
    assert 10 * MEGABYTE < consumed(place)["written_data_bytes"] < 25 * MEGABYTE


@pytest.mark.thorough
def test_a_killed_proxy_loses_only_what_it_has_not_reported(service: Service) -> None:
    place = place_in(service)
    with place.connect() as connection:
        connection.execute("SELECT repeat('x', 3000000)")
        wait_for(
            lambda: consumed(place)["data_transfer_bytes"] > 3 * MEGABYTE, "a report", timeout=30
        )
        connection.execute("SELECT repeat('x', 3000000)")
        for process in service.processes("proxy"):
            process.kill()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    wait_for(place.is_served, "another proxy")
    assert 3 * MEGABYTE < consumed(place)["data_transfer_bytes"] < 7 * MEGABYTE


@pytest.mark.thorough
def test_a_proxy_that_is_stopped_reports_before_it_ends(service: Service) -> None:
    place = place_in(service)
    with place.connect() as connection:
        connection.execute("SELECT repeat('x', 3000000)")
        service.down()
    service.up()
    assert consumed(place)["data_transfer_bytes"] > 3 * MEGABYTE
