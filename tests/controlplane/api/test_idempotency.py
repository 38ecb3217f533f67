"""`Idempotency-Key`: a request that is sent twice is executed once, and answered the same."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import requests
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import Account, ApiKey, Host, IdempotentRequest
from controlplane.operations.rounds import retention
from controlplane.operations.rounds.retention import forget_requests
from controlplane.services.rules.idempotency import RETENTION, lock_of
from tests.controlplane.api.test_request_limits import locked_row, wait_for_tries
from tests.support.another_api import AnotherApi, another_api, kill
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Finds a request that has its answer and waits to store it.
KEEPING_THE_ANSWER = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND query LIKE '%controlplane_idempotentrequest%'
"""

# Finds transactions that wait although they have a transaction id already.
NUMBERED = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_xid IS NOT NULL
"""


@pytest.fixture(scope="module")
def beside(stack: Stack) -> Iterator[AnotherApi]:
    """A second process of the API."""
    with another_api(stack) as api:
        yield api


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def send(client: Client, method: str, path: str, key: str, body: Any = None) -> requests.Response:
    return client.call(method, path, json=body, headers={"Idempotency-Key": key})


def is_replay(response: requests.Response) -> bool:
    return response.headers.get("Idempotent-Replayed") == "true"


def test_it_works(alice: Client, beside: AnotherApi, key: str) -> None:
    first = send(alice, "POST", "/api_keys", key, {"key_name": "ci"})
    assert (first.status_code, is_replay(first)) == (200, False)
    for client in (alice, beside.client(alice.key)):
        again = send(client, "POST", "/api_keys", key, {"key_name": "ci"})
        assert (again.status_code, is_replay(again)) == (200, True)
        assert again.content == first.content, "the key itself is in it"
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert [one["name"] for one in alice.get("/api_keys")] == ["ci", "tests"]
    Client(alice.api_url, first.json()["key"]).get("/projects")


def test_a_key_with_another_request_is_refused(alice: Client, key: str) -> None:
    assert send(alice, "POST", "/api_keys", key, {"key_name": "a"}).ok
    for method, path, body in (
        ("POST", "/api_keys", {"key_name": "b"}),
        ("POST", "/api_keys?x=1", {"key_name": "a"}),
        ("POST", "/projects", {"key_name": "a"}),
        ("DELETE", "/api_keys", {"key_name": "a"}),
        ("DELETE", "/api_keys/0", None),
    ):
        response = send(alice, method, path, key, body)
        if response.status_code != 405:
            assert refusal(response)[0] == 422, (method, path)
            assert "was used for another request" in response.json()["message"]
    assert len(alice.get("/api_keys")) == 2


def test_a_key_belongs_to_its_api_key(alice: Client, bob: Client, key: str) -> None:
    other = Client(alice.api_url, alice.post("/api_keys", {"key_name": "x"})["key"])
    for client in (alice, other, bob):
        response = send(client, "POST", "/api_keys", key, {"key_name": "y"})
        assert (response.status_code, is_replay(response)) == (200, False)


def test_a_final_refusal_is_replayed(standing: Project, key: str) -> None:
    body = {"branch": {"name": "main"}}
    path = standing.path + "/branches"
    first = send(standing.client, "POST", path, key, body)
    again = send(standing.client, "POST", path, key, body)
    assert refusal(first) == refusal(again)
    assert (first.status_code, is_replay(again)) == (409, True)


@pytest.mark.thorough
def test_a_temporary_refusal_is_not_stored(project: Project, key: str) -> None:
    path = project.endpoint_path()
    with project.locked():
        project.client.patch(path, {"endpoint": {"autoscaling_limit_max_cu": 1.5}})
        body = {"endpoint": {"autoscaling_limit_max_cu": 2}}
        assert send(project.client, "PATCH", path, key, body).status_code == 423
    wait_for(
        lambda: {one["status"] for one in project.operations()} <= {"finished", "failed"},
        "the first change",
    )
    again = send(project.client, "PATCH", path, key, body)
    assert (again.status_code, is_replay(again)) == (200, False)
    assert again.json()["endpoint"]["autoscaling_limit_max_cu"] == 2
    project.client.finish(again.json())


@pytest.mark.thorough
def test_of_two_simultaneous_requests_the_second_gets_the_firsts_answer(
    standing: Project, beside: AnotherApi, key: str
) -> None:
    clients = [standing.client, beside.client(standing.client.key)]
    body = {"branch": {"name": "once"}}
    path = standing.path + "/branches"
    with ThreadPoolExecutor(2) as threads:
        with locked_row(standing):
            sent: list[Future[requests.Response]] = []
            for number, client in enumerate(clients, start=1):
                sent.append(threads.submit(send, client, "POST", path, key, body))
                wait_for_tries(standing.stack, number)
            with standing.stack.database() as connection:
                # A waiting transaction with an id would delay the events of all accounts.
                numbered = connection.execute(NUMBERED).fetchone()
        assert numbered == (0,)
        answers = [one.result() for one in sent]
    assert [one.status_code for one in answers] == [201, 201]
    assert [is_replay(one) for one in answers] == [False, True]
    assert answers[0].json() == answers[1].json()
    found = standing.client.get(path, search="once")["branches"]
    assert len(found) == 1
    standing.client.finish(answers[0].json())
    standing.client.finish(standing.client.delete(f"{path}/{found[0]['id']}"))


@pytest.mark.thorough
def test_a_request_that_waits_too_long_gets_409(alice: Client, stack: Stack, key: str) -> None:
    with stack.database() as connection, connection.transaction():
        row = connection.execute(
            "SELECT id FROM controlplane_apikey WHERE digest = %s", [ApiKey.digest_of(alice.key)]
        ).fetchone()
        assert row is not None
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_of(row[0], key)])
        response = send(alice, "POST", "/api_keys", key, {"key_name": "x"})
        assert refusal(response)[0] == 409
        assert response.elapsed.total_seconds() < 5
    assert not is_replay(send(alice, "POST", "/api_keys", key, {"key_name": "x"}))
    assert len(alice.get("/api_keys")) == 2


@contextmanager
def held_before_the_answer_is_stored(stack: Stack, key: str) -> Iterator[None]:
    """While the block lasts, requests with the key are held after their change and before their
    answer is stored."""
    with stack.database() as connection:
        connection.execute("SELECT pg_advisory_lock(4711)")
        connection.execute(
            "CREATE FUNCTION hold_answer() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER hold_answer BEFORE INSERT ON controlplane_idempotentrequest"
            f" FOR EACH ROW WHEN (NEW.key = '{key}') EXECUTE FUNCTION hold_answer()"
        )
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(4711)")
            connection.execute("DROP FUNCTION hold_answer CASCADE")


@pytest.mark.thorough
def test_a_request_killed_before_its_answer_is_stored_has_no_effect(
    stack: Stack, standing: Project, key: str
) -> None:
    path, body = standing.path + "/branches", {"branch": {"name": "twice?"}}
    with another_api(stack) as doomed, ThreadPoolExecutor(1) as threads:
        with held_before_the_answer_is_stored(stack, key):
            sent = threads.submit(send, doomed.client(standing.client.key), "POST", path, key, body)
            with stack.database() as connection:
                wait_for(
                    lambda: connection.execute(KEEPING_THE_ANSWER).fetchone() == (1,), "the answer"
                )
            kill(doomed)
        with pytest.raises(requests.ConnectionError):
            sent.result()
    retried = send(standing.client, "POST", path, key, body)
    assert (retried.status_code, is_replay(retried)) == (201, False)
    (made,) = standing.client.get(path, search="twice?")["branches"]
    assert made["id"] == retried.json()["branch"]["id"]
    standing.client.finish(retried.json())
    standing.client.finish(standing.client.delete(f"{path}/{made['id']}"))


def test_requests_without_authentication_store_nothing(stack: Stack, key: str) -> None:
    stranger = Client(stack.api_url, "perch_wrong")
    assert send(stranger, "POST", "/projects", key, {"project": {}}).status_code == 401
    with stack.database() as connection:
        kept = connection.execute(
            "SELECT count(*) FROM controlplane_idempotentrequest WHERE key = %s", [key]
        ).fetchone()
    assert kept == (0,)


class TestStoredAnswers:
    def post(self, api: DjangoClient, key: str) -> Any:
        return api.post(
            "/api/v2/api_keys",
            json.dumps({"key_name": "x"}),
            content_type="application/json",
            headers={"Idempotency-Key": key},
        )

    def keep(self, api_key: ApiKey, key: str, at: datetime) -> None:
        IdempotentRequest.objects.create(api_key=api_key, key=key, status=200, created_at=at)

    def test_secrets_are_stored_encrypted(self, api: DjangoClient) -> None:
        response = self.post(api, "k")
        row = IdempotentRequest.objects.get(key="k")
        assert row.status == 200
        assert json.loads(response.content)["key"] not in row.answer
        assert "key_name" not in row.answer

    def test_after_a_day_a_key_can_be_used_again(self, api: DjangoClient) -> None:
        first = self.post(api, "k")
        nearly = timezone.now() - RETENTION + timedelta(minutes=1)
        IdempotentRequest.objects.update(created_at=nearly)
        assert self.post(api, "k").content == first.content
        IdempotentRequest.objects.update(created_at=nearly - timedelta(minutes=2))
        second = self.post(api, "k")
        assert json.loads(second.content)["id"] != json.loads(first.content)["id"]
        assert self.post(api, "k").content == second.content

    def test_a_stored_answer_that_cannot_be_decrypted_is_not_executed_again(
        self, api: DjangoClient, settings: Any
    ) -> None:
        self.post(api, "k")
        settings.SECRET_KEY = "another"
        assert self.post(api, "k").status_code == 409
        assert ApiKey.objects.count() == 2

    def test_a_round_removes_old_answers_and_those_beyond_the_limit(
        self, account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "MAX_PER_ACCOUNT", 3)
        other, _ = ApiKey.issue(Account.objects.create(name="bob"), "x")
        ours = [ApiKey.issue(account, name)[0] for name in "ab"]
        now = timezone.now()
        for hours in range(6):
            at = now - timedelta(hours=hours)
            self.keep(ours[hours % 2], f"{hours}", at)
        for key, age in (("young", timedelta(0)), ("old", timedelta(hours=25))):
            self.keep(other, key, now - age)
        forget_requests(host)
        kept = IdempotentRequest.objects.values_list("key", flat=True)
        assert sorted(kept) == ["0", "1", "2", "young"]
        monkeypatch.setattr(retention, "MAX_BYTES_PER_ACCOUNT", 25)
        IdempotentRequest.objects.update(answer="0123456789")
        forget_requests(host)
        assert sorted(kept.all()) == ["0", "1", "young"]

    def test_a_long_refusal_is_not_stored(self, api: DjangoClient) -> None:
        body = {
            "endpoint": {"settings": {"pg_settings": {"x" * 200 + str(i): 1 for i in range(99)}}}
        }
        answer = api.patch(
            "/api/v2/projects/x/endpoints/y",
            json.dumps(body),
            content_type="application/json",
            headers={"Idempotency-Key": "k"},
        )
        assert (answer.status_code, IdempotentRequest.objects.count()) == (400, 0)
