"""The slow requests of one account leave capacity for all others."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import requests

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# The default of PERCH_API_REQUESTS_PER_ACCOUNT.
MOST = 4
BRANCHES = 20
WAITING = (
    "SELECT pid, query_start FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND application_name = 'perch-api'"
)

FOR_PROJECT = (
    "SELECT query_start FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE 'SELECT \"controlplane_project\"%'"
)


@contextmanager
def locked_row(project: Project) -> Iterator[None]:
    """A change of the project waits while the block lasts."""
    with project.stack.database() as connection, connection.transaction():
        connection.execute(
            "SELECT FROM controlplane_project WHERE id = %s FOR UPDATE", [project.id]
        )
        yield


@contextmanager
def locked_account(client: Client, stack: Stack) -> Iterator[None]:
    """`slow` requests of the account wait while the block lasts, in the database."""
    with stack.database() as connection, connection.transaction():
        connection.execute(
            "SELECT FROM controlplane_account WHERE id ="
            " (SELECT account_id FROM controlplane_apikey WHERE digest = %s) FOR UPDATE",
            [hashlib.sha256(client.key.encode()).hexdigest()],
        )
        yield


def slow(client: Client) -> requests.Response:
    """A request that locks its account."""
    body = {"webhook": {"url": "https://hooks.example/", "event_types": ["*"]}}
    return client.call("POST", "/webhooks", json=body)


def wait_for_tries(stack: Stack, count: int) -> None:
    """Wait until statements of the API have waited for a lock so many times."""
    tries: set[Any] = set()
    with stack.database() as connection:

        def are_seen() -> bool:
            tries.update(connection.execute(WAITING).fetchall())
            return len(tries) >= count

        wait_for(are_seen, "statements that wait")


def wait_for_second_try(project: Project, calls: Sequence[Future[Any]]) -> None:
    """Wait until a statement waits for the project's lock that began 3 s after the first one, so
    that no statement that the API sent at first may still wait; or until a call has failed."""
    begun: set[datetime] = set()
    with project.stack.database() as connection:

        def is_seen() -> bool:
            begun.update(row[0] for row in connection.execute(FOR_PROJECT))
            tried_again = begun and max(begun) - min(begun) > timedelta(seconds=3)
            return bool(tried_again) or any(call.done() for call in calls)

        wait_for(is_seen, "a second try")


def rename(client: Client, project: Project, **options: object) -> requests.Response:
    body = {"endpoint": {"suspend_timeout_seconds": 600}}
    return client.call("PATCH", project.endpoint_path(), json=body, **options)


def test_it_works(stack: Stack, alice: Client, bob: Client) -> None:
    with ThreadPoolExecutor(MOST + 1) as threads:
        with locked_account(alice, stack):
            held = [threads.submit(slow, alice.another()) for _ in range(MOST)]
            wait_for_tries(stack, MOST)
            further = threads.submit(alice.another().call, "GET", "/projects")
            # A request does not wait for the database call of another request.
            assert bob.call("GET", "/projects").elapsed.total_seconds() < 1
            assert not further.done()
        assert further.result().status_code == 200
        assert {one.result().status_code for one in held} == {201}


@pytest.mark.thorough
def test_slow_requests_of_several_accounts_leave_connections_for_others(
    stack: Stack, bob: Client
) -> None:
    """Of the pool's 16 connections, three accounts get 12."""
    crowd = [stack.client() for _ in range(3)]
    with ThreadPoolExecutor(3 * MOST) as threads:
        with ExitStack() as locked:
            held = []
            for number, account in enumerate(crowd, start=1):
                locked.enter_context(locked_account(account, stack))
                held += [threads.submit(slow, account.another()) for _ in range(MOST)]
                wait_for_tries(stack, MOST * number)
            assert bob.call("GET", "/projects").elapsed.total_seconds() < 1
        for one in held:
            one.result()


@pytest.mark.thorough
def test_branches_asked_for_at_once_are_all_made(project: Project) -> None:
    clients = [project.client.another() for _ in range(BRANCHES)]

    def create(number: int) -> requests.Response:
        body = {"branch": {"name": f"preview-{number}"}}
        return clients[number].call("POST", project.path + "/branches", json=body)

    with ThreadPoolExecutor(BRANCHES) as threads:
        # As on a busy machine, the project is locked for longer than one statement may wait.
        with locked_row(project):
            asked = [threads.submit(create, number) for number in range(BRANCHES)]
            wait_for_second_try(project, asked)
        answers = [one.result() for one in asked]
    assert [answer.text for answer in answers if answer.status_code != 201] == []
    for answer in answers:
        project.done(answer.json())
    branches = project.client.get(project.path + "/branches", limit=100)["branches"]
    assert [branch["current_state"] for branch in branches] == ["ready"] * (BRANCHES + 1)


@pytest.mark.thorough
def test_a_change_that_waits_too_long_is_423_with_a_time_to_retry(
    standing: Project,
) -> None:
    with locked_row(standing):
        refused = rename(standing.client, standing)
    assert refusal(refused) == (423, "other requests are changing the project; try again")
    assert refused.headers["Retry-After"] == "1"
    assert rename(standing.client, standing).ok


def test_all_keys_of_an_account_count_together(stack: Stack, alice: Client) -> None:
    other = Client(alice.api_url, alice.post("/api_keys", {"key_name": "other"})["key"])
    with ThreadPoolExecutor(MOST + 1) as threads:
        with locked_account(alice, stack):
            held = [threads.submit(slow, alice.another()) for _ in range(MOST)]
            wait_for_tries(stack, MOST)
            further = threads.submit(other.call, "GET", "/projects")
            with pytest.raises(TimeoutError):
                further.result(timeout=0.5)
        assert further.result().ok
        assert all(one.result().ok for one in held)


@pytest.mark.thorough
def test_a_burst_is_served_in_order(alice: Client) -> None:
    together = threading.Barrier(4 * MOST)

    def ask(client: Client) -> int:
        together.wait()
        return client.call("GET", "/users/me").status_code

    with ThreadPoolExecutor(4 * MOST) as threads:
        assert set(threads.map(ask, [alice.another() for _ in range(4 * MOST)])) == {200}


@pytest.mark.thorough
def test_an_aborted_or_failed_request_releases_its_share(standing: Project) -> None:
    alice = standing.client
    for _ in range(MOST + 1):
        assert alice.call("GET", "/projects/no-where-12345678").status_code == 404
        assert alice.call("POST", "/projects", data=b"{").status_code == 400
    with ThreadPoolExecutor(MOST) as threads, locked_row(standing):
        for left in [threads.submit(leave, alice.another(), standing) for _ in range(MOST)]:
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
