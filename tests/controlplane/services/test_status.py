"""`/status` and `/status/hosts`: the service's health, for its users and for its operator."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.models import Account, Endpoint, Host
from tests.controlplane.api.test_key_limits import limited
from tests.controlplane.rows import make_project
from tests.support.client import Client
from tests.support.project import Project, refusal


@pytest.fixture
def runs_the_service(account: Account, settings: Any) -> None:
    settings.OPERATORS = {account.name}


def test_every_user_sees_that_no_process_is_missing(alice: Client) -> None:
    (region,) = alice.get("/status")["regions"]
    assert (region["id"], region["missing"]) == ("local", [])


def test_a_key_of_one_project_sees_it_too(project: Project) -> None:
    key = limited(project.client, project_id=project.id, read_only=True)
    assert key.get("/status")["regions"]
    assert refusal(key.call("GET", "/status/hosts"))[0] == 403


def test_the_hosts_are_only_for_the_operator(alice: Client, operator: Client) -> None:
    status, message = refusal(alice.call("GET", "/status/hosts"))
    assert (status, "PERCH_OPERATORS" in message) == (403, True)
    told = operator.get("/status/hosts")
    (host,) = told["hosts"]
    assert told["version"]
    assert host["pg_version"] >= 17
    assert 0 <= host["worker_seen_seconds_ago"] < 60
    assert host["disk_free_bytes"] > host["disk_reserve_bytes"] > 0
    assert [lane["lane"] for lane in host["lanes"]] == ["wakes", "requests", "upkeep"]
    assert set(told["webhooks"]) == {"waiting", "under_way", "oldest_seconds"}


def test_a_silent_process_is_missing(api: DjangoClient, host: Host) -> None:
    now = timezone.now()
    Host.objects.update(worker_seen_at=now - timedelta(seconds=60), proxy_seen_at=now)
    Host.objects.update(problems=[{"name": "round_late", "detail": "x"}])
    assert api.get("/api/v2/status").json()["regions"] == [
        {"id": host.id, "name": host.region_id, "missing": ["worker"], "problems": []}
    ]
    Host.objects.update(worker_seen_at=now)
    (told,) = api.get("/api/v2/status").json()["regions"]
    assert (told["missing"], told["problems"]) == ([], ["round_late"])


@pytest.mark.usefixtures("runs_the_service")
def test_computes_are_counted_by_their_state(
    api: DjangoClient, account: Account, host: Host
) -> None:
    project = make_project(account, host, size=4)
    ids = list(Endpoint.objects.filter(project=project).values_list("id", flat=True))
    Endpoint.objects.update(current_state="idle")
    Endpoint.objects.filter(id=ids[0]).update(current_state="active")
    Endpoint.objects.filter(id=ids[1]).update(disabled=True)
    (told,) = api.get("/api/v2/status/hosts").json()["hosts"]
    assert told["computes"] == {"active": 1, "idle": len(ids) - 2, "disabled": 1}


@pytest.mark.usefixtures("runs_the_service")
@pytest.mark.parametrize(("path", "budget"), [("status", 3), ("status/hosts", 6)])
def test_the_number_of_queries_is_constant(
    api: DjangoClient, account: Account, host: Host, path: str, budget: int
) -> None:
    make_project(account, host, size=10)
    with CaptureQueriesContext(connection) as captured:
        assert api.get(f"/api/v2/{path}").status_code == 200
    assert len(captured) == budget


HOST = "/api/v2/status/hosts/local"


@pytest.mark.usefixtures("runs_the_service")
def test_an_operator_drains_and_resumes_a_host(api: DjangoClient, host: Host) -> None:
    for draining in (True, False):
        answer = api.patch(HOST, {"host": {"draining": draining}}, "application/json")
        assert (answer.status_code, answer.json()["host"]["draining"]) == (200, draining)
        assert Host.objects.get().draining is draining
    moon = api.patch(HOST.replace("local", "moon"), {"host": {}}, "application/json")
    assert (moon.status_code, "use one of: local" in moon.json()["message"]) == (404, True)


@pytest.mark.usefixtures("runs_the_service")
def test_an_operator_removes_an_empty_host_that_is_stopped(
    api: DjangoClient, account: Account, host: Host
) -> None:
    answer = api.delete(HOST)
    assert (answer.status_code, answer.json()["message"]) == (
        409,
        "the worker of local still runs; stop it first",
    )
    Host.objects.update(worker_seen_at=None)
    project = make_project(account, host)
    assert api.delete(HOST).status_code == 409
    project.deleted_at = timezone.now()
    project.save()
    assert api.delete(HOST).json()["host"]["id"] == "local"
    assert not Host.objects.exists()


def test_no_other_account_changes_a_host(api: DjangoClient, host: Host) -> None:
    patched, lost = api.patch(HOST, {"host": {}}, "application/json"), api.post(f"{HOST}/lost")
    for answer in (patched, lost, api.delete(HOST)):
        assert (answer.status_code, "PERCH_OPERATORS" in answer.json()["message"]) == (403, True)
    assert Host.objects.exists()
