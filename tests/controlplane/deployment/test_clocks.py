"""All processes compare times by the database's clock, because a host's clock may be wrong."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from controlplane import clock
from controlplane.compute.catalog.reading import end_sessions_begun_before
from controlplane.database.base import BoundedConnection, check_good
from controlplane.models import Account, Host
from controlplane.operations.own_host import adopt_host
from controlplane.operations.rounds.upkeep import publish
from controlplane.services.monitoring.health import examine
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_project
from tests.support.bare_postgres import SUPERUSER, BarePostgres

# It shifts the time that C returns to Python, however a module has imported its functions.
time_machine = pytest.importorskip("time_machine")
HOUR = 3600.0


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore this process's clock after the test."""
    monkeypatch.setattr(clock, "_offset", clock._offset)
    monkeypatch.setattr(clock, "_asked_at", clock._asked_at)


def shifted(seconds: float) -> AbstractContextManager[Any]:
    """Shift this process's clock by `seconds` within the block."""
    there = datetime.now(UTC) + timedelta(seconds=seconds)
    return time_machine.travel(there, tick=True)  # type: ignore[no-any-return]


def database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


@pytest.fixture(params=[HOUR, -15, -HOUR])
def wrong_clock(request: pytest.FixtureRequest, host: Host) -> Iterator[None]:
    """A host with a wrong clock, in a service whose processes all run."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE controlplane_host SET worker_seen_at = now(), proxy_seen_at = now()")
    with shifted(request.param):
        yield


@pytest.mark.usefixtures("wrong_clock")
class TestWrongClock:
    def test_the_process_uses_the_databases_time(self) -> None:
        assert abs(clock.now() - database_time()) < timedelta(seconds=1)

    def test_the_service_is_healthy(self) -> None:
        health = examine()
        assert (health.status, health.missing) == ("ok", [])
        seen = health.details["regions"][0]["seen_seconds_ago"]
        assert all(0 <= seconds < 5 for seconds in seen.values())

    def test_an_endpoint_can_be_woken_and_its_times_are_right(self, account: Account) -> None:
        project = make_project(account, Host.objects.get())
        assert start_for_client(project.endpoints.get().id)
        started = project.operations.get(status="running")
        assert abs(started.created_at - database_time()) < timedelta(seconds=1)
        assert started.dispatched_at is not None
        assert abs(started.dispatched_at - database_time()) < timedelta(seconds=1)

    def test_a_computes_times_are_converted(self) -> None:
        """A compute uses its host's clock."""
        host = datetime.now(UTC)
        assert abs(clock.from_host(host) - database_time()) < timedelta(seconds=1)
        assert abs(clock.to_host(clock.from_host(host)) - host) < timedelta(milliseconds=10)


def test_a_host_whose_clock_is_behind_takes_work(host: Host, settings: Any, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path
    adopt_host(host)
    with shifted(-15):
        publish(host)
    host.refresh_from_db()
    assert not host.is_away
    assert "worker" not in host.silent_processes()


def test_a_late_answer_does_not_make_the_clock_less_accurate() -> None:
    clock._offset, right = None, datetime.now(UTC)
    began = clock.running_for()
    clock.adjust(right, sent_at=began - 0.001, answered_at=began + 0.001)
    exact = right.timestamp() - began
    # The answer was read ten seconds after it was sent.
    clock.adjust(right + timedelta(seconds=1), sent_at=began + 1, answered_at=began + 11)
    assert clock._offset == pytest.approx(exact, abs=0.001)
    clock.adjust(right + timedelta(seconds=HOUR), sent_at=began, answered_at=began)
    assert clock._offset == pytest.approx(exact + HOUR, abs=0.01)


def connected(cluster: BarePostgres, user: str = SUPERUSER) -> BoundedConnection:
    return BoundedConnection.connect(
        host=str(cluster.directory), port=cluster.port, user=user, dbname="postgres"
    )


def test_a_process_asks_for_the_time_regularly(bare_cluster: BarePostgres) -> None:
    with connected(bare_cluster) as kept:
        clock._offset = wrong = time.time() - clock.running_for() + HOUR
        clock._asked_at = clock.running_for()
        check_good(kept)
        assert clock._offset == wrong
        clock._asked_at -= clock.OFFSET_TTL + 1
        check_good(kept)
        assert abs(clock.now().timestamp() - time.time()) < 1
        assert kept.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_new_password_ends_the_sessions_begun_before_it(bare_cluster: BarePostgres) -> None:
    """A compute dates its sessions by the host's clock; the time of a new password is the
    database's."""
    clock._offset = time.time() - clock.running_for() - HOUR  # the host is an hour ahead
    before = clock.now()
    with connected(bare_cluster) as platform:
        platform.autocommit = True
        platform.execute("CREATE ROLE clocked LOGIN")
        with connected(bare_cluster, "clocked") as client:
            client.execute("SELECT 1")
            end_sessions_begun_before(platform, "clocked", before)
            client.execute("SELECT 1")
            end_sessions_begun_before(platform, "clocked", clock.now())
            with pytest.raises(psycopg.errors.AdminShutdown):
                client.execute("SELECT 1")
        platform.execute("DROP ROLE clocked")
