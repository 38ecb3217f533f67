"""The slow requests of one account leave capacity for all others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for

SHARE = 16
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@contextmanager
def locked_row(project: Project) -> Iterator[None]:
    """A change of the project waits while the block lasts."""
    with project.stack.database() as connection, connection.transaction():
        connection.execute(
            "SELECT FROM controlplane_project WHERE id = %s FOR UPDATE", [project.id]
        )
        yield


def wait_for_waiting(project: Project, count: int) -> None:
    with project.stack.database() as connection:
        wait_for(lambda: connection.execute(WAITING).fetchone() == (count,), "requests that wait")


def rename(client: Client, project: Project, **options: object) -> requests.Response:
    body = {"endpoint": {"suspend_timeout_seconds": 600}}
    return client.call("PATCH", project.endpoint_path(), json=body, **options)


def test_it_works(standing: Project, bob: Client) -> None:
    alice = standing.client
    with ThreadPoolExecutor(SHARE) as threads:
        with locked_row(standing):
            slow = [threads.submit(rename, alice.another(), standing) for _ in range(SHARE)]
            wait_for_waiting(standing, SHARE)
            # A request does not wait for the database call of another request.
            assert bob.call("GET", "/projects").elapsed.total_seconds() < 1
            refused = alice.call("GET", "/projects")
        assert refusal(refused)[0] == 429
        assert refused.headers["Retry-After"] == "1"
        assert [one.result().status_code for one in slow] == [200] * SHARE
    assert alice.call("GET", "/projects").ok


@pytest.mark.thorough
def test_a_change_that_waits_too_long_is_423_with_a_time_to_retry(
    standing: Project,
) -> None:
    with locked_row(standing):
        refused = rename(standing.client, standing)
    assert refusal(refused) == (423, "other requests are changing the project; try again")
    assert refused.headers["Retry-After"] == "1"
    assert rename(standing.client, standing).ok


def test_all_keys_of_an_account_count_together(standing: Project) -> None:
    alice = standing.client
    other = Client(alice.api_url, alice.post("/api_keys", {"key_name": "other"})["key"])
    with ThreadPoolExecutor(SHARE) as threads:
        with locked_row(standing):
            slow = [threads.submit(rename, alice.another(), standing) for _ in range(SHARE)]
            wait_for_waiting(standing, SHARE)
            assert refusal(other.call("GET", "/projects"))[0] == 429
        assert all(one.result().ok for one in slow)


@pytest.mark.thorough
def test_a_burst_is_served_in_order(alice: Client) -> None:
    together = threading.Barrier(4 * SHARE)

    def ask(client: Client) -> int:
        together.wait()
        return client.call("GET", "/users/me").status_code

    with ThreadPoolExecutor(4 * SHARE) as threads:
        assert set(threads.map(ask, [alice.another() for _ in range(4 * SHARE)])) == {200}


@pytest.mark.thorough
def test_an_aborted_or_failed_request_releases_its_share(standing: Project) -> None:
    alice = standing.client
    for _ in range(SHARE + 1):
        assert alice.call("GET", "/projects/no-where-12345678").status_code == 404
        assert alice.call("POST", "/projects", data=b"{").status_code == 400
    with ThreadPoolExecutor(SHARE) as threads, locked_row(standing):
        for left in [threads.submit(leave, alice.another(), standing) for _ in range(SHARE)]:
            left.result()
    wait_for(lambda: alice.call("GET", "/projects").ok, "the shares to be given back")


def leave(client: Client, project: Project) -> None:
    """Send a request, and close the connection before the answer."""
    with pytest.raises(requests.ReadTimeout):
        client.session.patch(
            client.api_url + project.endpoint_path(),
            json={"endpoint": {"suspend_timeout_seconds": 600}},
            timeout=0.5,
        )
