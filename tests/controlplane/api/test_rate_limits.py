"""How many requests an account and a key may send, to all processes of the API together."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.models import Account, ApiKey, Host, Plan, RequestRate
from controlplane.operations.rounds.retention import forget_requests
from controlplane.services.rules.request_rates import (
    REQUESTS_PER_SECOND,
    RateLimited,
    admit_request,
)
from tests.support.another_api import AnotherApi, another_api
from tests.support.client import Client
from tests.support.project import refusal
from tests.support.stack import Stack

PER_MINUTE = 30


@pytest.fixture(scope="module")
def processes(stack: Stack) -> Iterator[list[AnotherApi]]:
    """Two processes of the API that allow each account a few requests."""
    limited = partial(another_api, stack, PERCH_API_RATE_LIMIT=str(PER_MINUTE))
    with limited() as one, limited() as other:
        yield [one, other]


@pytest.mark.thorough
def test_an_account_is_counted_in_all_processes_together(
    processes: list[AnotherApi], alice: Client, bob: Client
) -> None:
    other_key = alice.post("/api_keys", {"key_name": "other"})["key"]
    clients = [api.client(key) for api in processes for key in (alice.key, other_key)]
    began = time.monotonic()
    answers = [
        client.call("GET", "/users/me")
        for _, client in zip(range(PER_MINUTE + 20), cycle(clients), strict=False)
    ]
    seconds = time.monotonic() - began
    served = [one for one in answers if one.ok]
    assert PER_MINUTE <= len(served) <= PER_MINUTE + seconds * PER_MINUTE / 60 + 1
    assert all(one.ok for one in answers[:PER_MINUTE])
    refused = next(one for one in answers if not one.ok)
    assert refusal(refused)[0] == 429
    assert refused.json()["code"] == "RATE_LIMIT_EXCEEDED"
    assert f"{PER_MINUTE} requests per minute for an account" in refused.json()["message"]
    wait = int(refused.headers["Retry-After"])
    assert 1 <= wait <= 2, "one request each two seconds"
    assert processes[0].client(bob.key).call("GET", "/users/me").ok
    assert alice.call("GET", "/users/me").ok, "off where it is not set and the plan names none"


@pytest.mark.thorough
def test_a_client_that_waits_as_long_as_told_is_served(
    processes: list[AnotherApi], alice: Client
) -> None:
    client = processes[0].client(alice.key)
    while (answer := client.call("GET", "/auth")).ok:
        pass
    ends = time.monotonic() + int(answer.headers["Retry-After"])
    while (left := ends - time.monotonic()) > 0:
        time.sleep(left)  # the test is of this pause
    assert processes[1].client(alice.key).call("GET", "/auth").ok


@pytest.mark.thorough
def test_a_refused_change_is_not_made(processes: list[AnotherApi], alice: Client) -> None:
    client = processes[0].client(alice.key)
    made = 0
    for number in range(PER_MINUTE + 10):
        body = {"key_name": f"{number}"}
        header = {"Idempotency-Key": f"k{number}"}
        made += client.call("POST", "/api_keys", json=body, headers=header).ok
    assert 0 < made < PER_MINUTE + 10
    assert len(alice.get("/api_keys")) == made + 1


def test_requests_without_authentication_are_not_counted(
    stack: Stack, processes: list[AnotherApi]
) -> None:
    with stack.database() as database:
        count = "SELECT count(*) FROM controlplane_requestrate"
        before = database.execute(count).fetchone()
        for number in range(20):
            answer = processes[0].client(f"perch_{number}").call("GET", "/projects")
            assert answer.status_code == 401
        assert database.execute(count).fetchone() == before


class TestCounting:
    @pytest.fixture
    def key(self, account: Account) -> ApiKey:
        Account.objects.filter(id=account.id).update(plan=Plan.FREE)
        account.refresh_from_db()
        return ApiKey.issue(account, "tests")[0]

    def served(self, key: ApiKey, route: str, *, times: int) -> int:
        """Return how many of so many requests are allowed."""
        refused = []
        for _ in range(times):
            try:
                admit_request(key, route=route)
            except RateLimited as error:
                refused.append(error.retry_after)
        assert set(refused) <= {1}, "no rate here is slower than one request a second"
        return times - len(refused)

    def test_a_burst_at_one_route_leaves_room_for_others(self, key: ApiKey) -> None:
        began = time.monotonic()
        served = self.served(key, "GET /projects", times=100)
        most = REQUESTS_PER_SECOND + REQUESTS_PER_SECOND * (time.monotonic() - began) + 1
        assert REQUESTS_PER_SECOND <= served <= most
        assert self.served(key, "GET /regions", times=10) == 10
        other, _ = ApiKey.issue(key.account, "other")
        assert self.served(other, "GET /projects", times=10) == 10

    def test_the_rate_of_creating_keys_is_lower(self, key: ApiKey) -> None:
        assert 10 <= self.served(key, "POST /api_keys", times=60) < 30

    def test_refused_requests_are_not_counted(self, key: ApiKey) -> None:
        served = self.served(key, "GET /projects", times=100)
        account = RequestRate.objects.get(name=f"account {key.account_id}")
        ahead = (account.free_at - timezone.now()).total_seconds()
        assert ahead < 60 / 700 * (served + 1), "as after those that were served, not after 100"

    def test_the_unlimited_plan_makes_no_query(self, account: Account) -> None:
        key, _ = ApiKey.issue(account, "tests")
        assert self.served(key, "GET /projects", times=100) == 100
        assert not RequestRate.objects.exists()

    def test_a_round_removes_rows_that_limit_nobody(self, key: ApiKey, host: Host) -> None:
        admit_request(key, route="GET /old")
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE controlplane_requestrate SET free_at = free_at - interval '2 minutes'"
            )
        admit_request(key, route="GET /new")
        forget_requests(host)
        names = {f"account {key.account_id}", f"key {key.id} GET /new"}
        assert set(RequestRate.objects.values_list("name", flat=True)) == names
