"""What computes write and proxies send is measured, and quotas apply to it."""

import time
from typing import Any

import pytest

from tests.support.place import Place
from tests.support.project import refusal
from tests.support.waiting import wait_for

MEGABYTE = 1_000_000
# Seconds: the proxies' reports, and the round that measures sizes and logs, with a margin for load.
REPORTED, MEASURED = 30.0, 60.0


def project(place: Place) -> Any:
    return place.client.get(place.path)["project"]


def branch(place: Place, branch_id: str | None = None) -> Any:
    return place.client.get(place.branch_path(branch_id or place.branch_id))["branch"]


def write(place: Place, megabytes: int, *, table: str = "written") -> None:
    """Write rows of random bytes, which do not compress in the log."""
    with place.connect() as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (data text)".encode())
        connection.execute(
            f"INSERT INTO {table} SELECT string_agg(md5(random()::text), '')"
            f" FROM generate_series(1, {megabytes * 1000}) n, generate_series(1, 31)"
            " GROUP BY n".encode()
        )


def set_quota(place: Place, **quota: int) -> None:
    """Set the project's quota by the API."""
    body = {"project": {"settings": {"quota": quota}}}
    place.client.patch(place.path, body)


class TestMeasurements:
    def test_what_is_written(self, place: Place) -> None:
        # What the platform wrote when it created the branch does not count.
        assert branch(place)["written_data_bytes"] < MEGABYTE
        write(place, 5)
        # Measured at the latest when the endpoint is suspended.
        place.suspend()
        written = branch(place)["written_data_bytes"]
        assert 5 * MEGABYTE < written < 15 * MEGABYTE
        place.start()
        place.suspend()
        assert branch(place)["written_data_bytes"] < written + MEGABYTE

    @pytest.mark.thorough
    def test_writes_of_a_killed_compute_are_counted_exactly_once(self, place: Place) -> None:
        write(place, 5)
        wait_for(
            lambda: branch(place)["written_data_bytes"] > 5 * MEGABYTE,
            "a measurement while it runs",
            timeout=MEASURED,
        )
        write(place, 5)
        place.postmaster().kill()
        wait_for(lambda: place.state() == "idle", "its end to be noticed")
        place.query("SELECT 1")
        place.suspend()
        # Recovery writes a little itself.
        assert 10 * MEGABYTE < branch(place)["written_data_bytes"] < 25 * MEGABYTE

    @pytest.mark.thorough
    def test_what_is_sent_to_clients(self, place: Place) -> None:
        before = project(place)["data_transfer_bytes"]
        with place.connect() as direct, place.connect(pooled=True) as pooled:
            for connection in (direct, pooled):
                connection.execute("SELECT repeat('x', 5000000)")
            wait_for(
                lambda: project(place)["data_transfer_bytes"] >= before + 10 * MEGABYTE,
                "a report of connections that last",
                timeout=REPORTED,
            )
        assert project(place)["data_transfer_bytes"] < before + 11 * MEGABYTE
        assert branch(place)["data_transfer_bytes"] == project(place)["data_transfer_bytes"]


QUOTAS = {
    "active_time_seconds": "active time",
    "compute_time_seconds": "compute time",
    "written_data_bytes": "written data",
    "data_transfer_bytes": "data transfer",
    "logical_size_bytes": "logical size",
}


class TestQuota:
    @pytest.mark.thorough
    @pytest.mark.parametrize("field", QUOTAS)
    def test_an_exceeded_quota_suspends_and_prevents_starts(self, place: Place, field: str) -> None:
        words = (
            f"Your account or project has exceeded the {QUOTAS[field]} quota. "
            "Upgrade your plan to increase limits."
        )
        write(place, 1)
        place.query("SELECT repeat('x', 2000000)")
        limit = 1 if field.endswith("seconds") else MEGABYTE
        set_quota(place, **{field: limit})
        began = time.monotonic()
        wait_for(lambda: place.state() == "idle", "it to be suspended", timeout=MEASURED)
        print(f"{field}: suspended after {time.monotonic() - began:.1f} s")
        place.settle()

        error = place.refusal()
        assert words in str(error)
        path = f"{place.path}/endpoints/{place.endpoint_id}"
        for call in ("start", "restart"):
            response = place.client.call("POST", f"{path}/{call}")
            status, message = refusal(response)
            assert status == 423
            assert message.startswith(words)
            assert (
                response.json()["code"]
                == f"{QUOTAS[field].upper().replace(' ', '_')}_QUOTA_EXCEEDED"
            )
        (event,) = place.client.get("/events", type="quota.exceeded")["events"][:1]
        assert event["endpoint_id"] == place.endpoint_id
        assert event["changes"]["quota"]["to"] == field
        assert place.state() == "idle"

        set_quota(place, **{field: 1 << 40})
        assert place.is_served()

    @pytest.mark.thorough
    def test_a_project_without_quota_left_gets_no_new_endpoint(self, place: Place) -> None:
        place.query("SELECT 1")
        set_quota(place, active_time_seconds=1)
        wait_for(lambda: place.state() == "idle", "it to be suspended", timeout=MEASURED)
        place.settle()
        body = {"endpoints": [{"type": "read_write"}]}
        assert refusal(place.client.call("POST", f"{place.path}/branches", json=body))[0] == 423
        made = place.new_branch_id()
        endpoint = {"endpoint": {"branch_id": made, "type": "read_write"}}
        response = place.client.call("POST", f"{place.path}/endpoints", json=endpoint)
        assert refusal(response)[0] == 423

    @pytest.mark.thorough
    def test_the_next_period_begins_at_zero(self, place: Place) -> None:
        place.query("SELECT 1")
        set_quota(place, active_time_seconds=1)
        wait_for(lambda: place.state() == "idle", "it to be suspended", timeout=MEASURED)
        place.settle()
        with place.stack.database() as database:
            database.execute(
                "UPDATE controlplane_usage SET start = start - interval '1 month'"
                " WHERE project_id = %s AND span = 'month'",
                [place.id],
            )
        assert place.is_served()
