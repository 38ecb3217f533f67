"""`/healthz` reports the health of this host within five seconds."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psutil
import pytest
import requests
from django.db import connection
from django.test import RequestFactory
from django.utils import timezone

from controlplane.api import status
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.patience import patience
from controlplane.events.outbox import enqueue_sending
from controlplane.features import Problem
from controlplane.models import Account, Endpoint, Host, Operation
from controlplane.operations.rounds import vitals
from controlplane.operations.rounds.vitals import Rounds
from controlplane.operations.under_way import registered
from controlplane.services.monitoring.health import examine
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_host, make_project, make_webhook
from tests.support.processes import SIGNS, held_still
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture
def healthy(host: Host) -> Host:
    host.worker_seen_at = host.proxy_seen_at = timezone.now()
    host.save()
    return host


def ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


class TestMissing:
    def test_nothing(self, healthy: Host) -> None:
        health = examine()
        assert (health.status, health.missing, health.problems) == ("ok", [], [])

    @pytest.mark.parametrize("process", ["worker", "proxy"])
    def test_a_process_that_is_silent(self, healthy: Host, process: str) -> None:
        for seconds, missing in ((4, []), (6, [process])):
            Host.objects.update(**{f"{process}_seen_at": ago(seconds)})
            assert examine().missing == missing
        assert examine().status == "unavailable"

    def test_another_hosts_processes_are_not_reported(self, healthy: Host) -> None:
        make_host("dead", worker_seen_at=None)
        health = examine()
        assert health.status == "ok"
        for of in ("regions", "hosts"):
            described = {one["id"]: one["missing"] for one in health.details[of]}
            assert described == {"dead": ["worker", "proxy"], "local": []}

    def test_an_api_alone_reports_a_host_of_the_default_region(
        self, healthy: Host, settings: Any
    ) -> None:
        settings.REGION = settings.HOST_NAME = "api-only"
        assert examine().details["region"] == "local"
        Host.objects.update(worker_seen_at=ago(6))
        assert examine().missing == ["worker"]


class TestProblems:
    def test_the_workers_own(self, healthy: Host) -> None:
        problem = {"name": "disk_full", "detail": "3 % of the disk are left"}
        Host.objects.update(problems=[problem])
        health = examine()
        assert (health.status, health.problems) == ("degraded", ["disk_full"])
        assert health.details["problems"] == [problem]
        Host.objects.update(worker_seen_at=ago(6))
        assert examine().problems == []  # it is out of date

    def test_a_job_that_waits(self, healthy: Host, account: Account) -> None:
        project = make_project(account, healthy)
        start_for_client(Endpoint.objects.get(project=project).id)
        assert examine().problems == []
        with connection.cursor() as cursor:
            cursor.execute("UPDATE controlplane_job SET due_at = due_at - interval '20 s'")
        health = examine()
        assert health.problems == ["lane_waits"]
        wakes = health.details["lanes"][0]
        assert 20 <= wakes.pop("oldest_seconds") < 25
        assert wakes == {"lane": "wakes", "waiting": 1, "under_way": 0}

    def test_a_webhook_that_waits(self, healthy: Host, account: Account) -> None:
        webhook = make_webhook(account)
        enqueue_sending(webhook)
        # It waits only for its time, which is not a problem.
        enqueue_sending(webhook, at=ago(-3600))
        assert examine().problems == []
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE controlplane_job SET due_at = due_at - interval '70 s'"
                " WHERE due_at <= now()"
            )
        health = examine()
        assert health.problems == ["webhooks_wait"]
        webhooks = health.details["webhooks"]
        assert 70 <= webhooks.pop("oldest_seconds") < 75
        assert webhooks == {"waiting": 2, "under_way": 0}

    def test_an_operation_that_hangs(self, healthy: Host, account: Account) -> None:
        make_project(account, healthy)
        operation = Operation.objects.get()
        with registered(operation) as attempt:
            assert vitals.problems() == []
            attempt.waits_until = time.monotonic() - 10
            Host.objects.update(problems=vitals.problems())
        # Once it has begun, the bound of its attempt applies instead.
        with registered(operation) as attempt, patience(-1) as attempt.patience:
            assert not attempt.hangs
            attempt.patience.deadline -= 10
            assert attempt.hangs
        assert examine().details["problems"] == [
            {
                "name": "operations_hang",
                "detail": "start_compute: 1 running for longer than they may",
            }
        ]
        Host.objects.update(problems=vitals.problems())
        assert examine().problems == []

    def test_a_kernel_that_does_not_confine_upgrades(
        self, healthy: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vitals, "landlock_version", lambda: 0)
        # Without another version, there are no upgrades.
        assert vitals.problems() == []
        monkeypatch.setattr(vitals, "majors", lambda: [15, 18])
        Host.objects.update(problems=vitals.problems())
        assert examine().problems == ["upgrades_unconfined"]

    def test_a_kernel_that_does_not_protect_ports(
        self, healthy: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vitals, "can_deny_ports", lambda: False)
        # If all computes share one account, it is not promised that they stay isolated.
        monkeypatch.setattr(vitals, "shared_account", own_account)
        assert vitals.problems() == []
        monkeypatch.setattr(vitals, "shared_account", lambda: None)
        Host.objects.update(problems=vitals.problems())
        assert examine().problems == ["ports_unprotected"]

    def test_many_operations_without_progress(self, healthy: Host, account: Account) -> None:
        make_project(account, healthy, size=8)
        with ExitStack() as held:
            attempts = [held.enter_context(registered(one)) for one in Operation.objects.all()]
            assert vitals.problems() == []
            for attempt in attempts:
                attempt.began -= 20
            assert [problem["name"] for problem in vitals.problems()] == ["operations_stand_still"]
            assert "requests: 8 of 32 slots" in vitals.problems()[0]["detail"]
            with patience(60) as attempts[0].patience:  # one of them has just begun
                assert vitals.problems() == []

    def test_rounds_that_fail_or_are_late(self) -> None:
        rounds = Rounds()
        rounds.begin("quick", 0.5)
        rounds.begin("slow", 30)
        for record in rounds._records.values():
            record.ended -= 10
        (late,) = rounds.problems()
        assert late == Problem("round_late", "quick has not ended for 10 s")
        rounds.end("quick", error=ValueError("of no concern to others"))
        assert rounds.problems() == [Problem("round_fails", "quick fails: ValueError")]
        rounds.end("quick")
        assert rounds.problems() == []

    def test_a_check_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def space() -> list[Problem]:
            raise OSError("gone")

        monkeypatch.setattr(vitals, "CHECKS", (space, lambda: [Problem("other", "one")]))
        assert [problem["name"] for problem in vitals.problems()] == ["check_fails", "other"]


def test_callers_of_the_same_second_share_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def question() -> int:
        asked.append(1)
        return len(asked)

    assert [status._ask_with_timeout(question) for _ in range(9)] == [1] * 9
    monkeypatch.setattr(status, "SHARED_FOR", 0.0)
    assert status._ask_with_timeout(question) == 2


def test_details_are_for_this_machine(rf: RequestFactory) -> None:
    elsewhere: list[dict[str, Any]] = [
        {"REMOTE_ADDR": "192.0.2.7"},
        {"REMOTE_ADDR": "2001:db8::7"},
        {"HTTP_X_FORWARDED_FOR": "127.0.0.1"},
    ]
    for headers in elsewhere:
        answer = status.healthz_details(rf.get("/healthz/details", **headers))
        assert (answer.status_code, b"/status/hosts" in answer.content) == (403, True)


class TestRunningService:
    @staticmethod
    def ask(stack: Stack, rest: str = "") -> requests.Response:
        return requests.get(stack.api_url.replace("/api/v2", "/healthz") + rest, timeout=10)

    def test_details(self, stack: Stack) -> None:
        wait_for(lambda: self.ask(stack).json() == {"status": "ok"}, "the service to be healthy")
        details = self.ask(stack, "/details").json()
        assert details["status"] == "ok"
        assert [lane["lane"] for lane in details["lanes"]] == ["wakes", "requests", "upkeep"]
        (region,) = details["regions"]
        assert region["id"] == "local"
        assert max(region["seen_seconds_ago"].values()) < 5

    def ask_process(self, stack: Stack, path: str) -> tuple[int, Any]:
        answer = requests.get(stack.api_url.replace("/api/v2", path), timeout=10)
        return answer.status_code, answer.json()

    def test_a_database_that_hangs(self, stack: Stack) -> None:
        assert self.ask_process(stack, "/readyz") == (200, {"status": "ok"})
        with frozen_metadata(stack):
            # The answers of the last second are still given.
            ready = {"status": "unavailable", "missing": ["database"]}
            found = (503, ready)
            wait_for(lambda: self.ask_process(stack, "/readyz") == found, "it to be missed")
            began = time.monotonic()
            answer = self.ask(stack)
            assert time.monotonic() - began < 5
            assert self.ask_process(stack, "/livez") == (200, {"status": "ok"})
        assert (answer.status_code, answer.json()["missing"]) == (503, ["database"])
        wait_for(lambda: self.ask(stack).status_code == 200, "the service to be healthy again")

    @pytest.mark.thorough
    def test_a_dead_worker_takes_no_process_of_the_api_out(self, stack: Stack) -> None:
        with held_still(stack, "worker"):
            wait_for(lambda: self.ask(stack).status_code == 503, "the worker to be missed")
            assert self.ask_process(stack, "/readyz") == (200, {"status": "ok"})
        wait_for(lambda: self.ask(stack).status_code == 200, "the service to be healthy again")


@contextlib.contextmanager
def frozen_metadata(stack: Stack) -> Iterator[None]:
    """Stop the service's own Postgres, all its processes, by SIGSTOP."""
    frozen = []
    for process in psutil.Process(stack.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if SIGNS["metadata"] in " ".join(process.cmdline()) + " ":
                frozen += [process, *process.children(recursive=True)]
    assert frozen
    try:
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        for process in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
