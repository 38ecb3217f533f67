"""The connections to Perch's own database: which there are, and what commands and the worker say if
it does not answer or fails while the queue is used. Nothing is lost."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from django.db import OperationalError, connection
from django.test import override_settings

from controlplane.database.connection_counts import most_connections, needed_connections
from controlplane.features import Round
from controlplane.management.commands import worker
from controlplane.models import Account, Host
from controlplane.operations.locks import locked_project
from controlplane.operations.rounds import vitals
from tests.controlplane.rows import make_project
from tests.support.client import ENDED
from tests.support.processes import processes_of
from tests.support.project import Project, refusal
from tests.support.stack import ROOT
from tests.support.waiting import load, wait_for


def manage(*arguments: str, state_dir: Path, **given: str) -> str:
    """Run a command that fails, and return its only line."""
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    known.pop("DATABASE_URL", None)
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**known, "PERCH_STATE_DIR": str(state_dir), **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_commands_without_a_database_say_what_is_missing(tmp_path: Path) -> None:
    for command in (["accounts"], ["hosts"], ["psql", "ep-quiet-heron-123456"]):
        line = manage(*command, state_dir=tmp_path)
        assert line.startswith("DATABASE_URL is not set, and the Postgres that `up` runs does not")
        assert f"The state directory of this command is {tmp_path}" in line


def test_a_command_whose_database_is_away_says_why(tmp_path: Path) -> None:
    url = f"host={tmp_path} dbname=perch"
    line = manage("accounts", state_dir=tmp_path, DATABASE_URL=url)
    assert line.startswith("The database of DATABASE_URL does not answer: ")
    assert str(tmp_path) in line


def test_a_backup_makes_no_database(tmp_path: Path) -> None:
    line = manage("backup", str(tmp_path / "backup"), state_dir=tmp_path / "state")
    assert "set DATABASE_URL" in line or "--state-dir" in line
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "identity").write_text("0f1d6f52-7f63-4a5e-9df1-6a0c7a9f3a53\n")
    manage("backup", str(tmp_path / "backup"), state_dir=tmp_path / "used")
    assert not (tmp_path / "used" / "metadata").exists()


def test_an_outage_is_told_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def publish(_: Host) -> None:
        if is_away:
            raise OperationalError("no answer\n")

    def other(host: Host) -> None:
        publish(host)

    monkeypatch.setattr(worker, "publish", publish)
    monkeypatch.setattr(vitals.rounds, "_records", {})
    host: Any = None

    async def run() -> None:
        nonlocal is_away
        rounds = [asyncio.create_task(worker.repeat(Round(0.01, do), host))
                  for do in (publish, other)]  # fmt: skip
        await asyncio.sleep(0.3)
        is_away = False
        await asyncio.sleep(0.3)
        for task in rounds:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with caplog.at_level(logging.INFO, worker.log.name):
        asyncio.run(run())
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [("WARNING", "database does not answer"), ("INFO", "database answers again")]


# The beginning of the statement that locks a project: Postgres shows its first 1,023 bytes.
PROJECT_LOCK = 'SELECT t."id", t."account_id", t."region_id", t."host_id"'
WAITING = "wait_event_type = 'Lock' AND query LIKE %s"


def end_waiting(
    observer: "psycopg.Connection[Any]", statement: str, *, timeout: float = 30.0
) -> None:
    """Close the connections of those who wait for a lock with that statement."""
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {WAITING}".encode()

    def found() -> list[Any]:
        return observer.execute(query, [f"%{statement}%"]).fetchall()

    wait_for(found, f"{statement} to wait", timeout=timeout)


@pytest.mark.thorough
def test_after_a_failed_heartbeat_others_follow(project: Project) -> None:
    database = project.stack.database
    with database() as holder, database() as observer, project.locked():
        asked = project.client.post(project.endpoint_path(rest="/restart"))
        job = f"FROM controlplane_job WHERE subject = '{asked['operations'][0]['id']}'"
        taken = f"SELECT {job} AND taken_by IS NOT NULL".encode()
        wait_for(lambda: observer.execute(taken).fetchall(), "the job to be taken")
        with holder.transaction():
            holder.execute(f"SELECT {job} FOR UPDATE".encode())
            end_waiting(observer, "UPDATE controlplane_job SET seen_at")
        observer.execute("CREATE TEMP TABLE broken_off AS SELECT clock_timestamp() AS at")
        seen = f"SELECT seen_at > (SELECT at FROM broken_off) {job}".encode()
        wait_for(lambda: observer.execute(seen).fetchone() == (True,), "a sign of life")
    project.done(asked)


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["DELETE FROM", "UPDATE"])
def test_a_job_whose_end_cannot_be_written_ends_nevertheless(project: Project, ending: str) -> None:
    with project.stack.database() as holder, project.stack.database() as observer:
        with holder.transaction():
            with project.locked():
                asked = project.client.post(project.endpoint_path(rest="/restart"))
                operation_id = asked["operations"][0]["id"]
                job = f"SELECT FROM controlplane_job WHERE subject = '{operation_id}'"
                taken = f"{job} AND taken_by IS NOT NULL".encode()
                wait_for(lambda: observer.execute(taken).fetchall(), "the job to be taken")
                holder.execute(f"{job} FOR UPDATE".encode())
                if ending == "UPDATE":
                    row = "SELECT FROM controlplane_project WHERE id = %s FOR UPDATE"
                    holder.execute(row, [project.id])
            if ending == "UPDATE":
                # The attempt fails at its end, so it must be repeated.
                end_waiting(observer, PROJECT_LOCK)
            end_waiting(observer, f"{ending} controlplane_job")
        wait_for(lambda: not observer.execute(job.encode()).fetchall(), "the job's end")
    project.done(asked)


@pytest.mark.thorough
def test_a_lane_that_was_interrupted_continues_by_itself(project: Project) -> None:
    worker = processes_of(project.stack, "worker")
    database = project.stack.database
    with database() as holder, database() as observer, holder.transaction():
        holder.execute("LOCK TABLE controlplane_job IN EXCLUSIVE MODE")
        end_waiting(observer, "UPDATE controlplane_job SET seen_at")
    project.done(project.client.post(project.endpoint_path(rest="/restart")))
    assert processes_of(project.stack, "worker") == worker


def test_lanes_listen_again_after_a_database_that_accepted_no_connection(project: Project) -> None:
    listening = "FROM pg_stat_activity WHERE query LIKE 'LISTEN %perch_jobs#%'"
    count = f"SELECT count(*) {listening}".encode()
    with project.stack.database() as database:
        name = database.info.dbname
        before = database.execute(count).fetchall()
        elsewhere = psycopg.conninfo.make_conninfo(database.info.dsn, dbname="postgres")
        with psycopg.connect(elsewhere, autocommit=True) as other:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
            try:
                other.execute(f"SELECT pg_terminate_backend(pid) {listening}".encode())
                time.sleep(2)  # in which they try to connect
            finally:
                other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
        wait_for(lambda: database.execute(count).fetchall() == before, "all lanes to listen")
    project.done(project.client.post(project.endpoint_path(rest="/restart")))


def test_a_request_whose_job_cannot_be_written_is_refused_as_in_an_outage(project: Project) -> None:
    database, path = project.stack.database, project.endpoint_path(rest="/restart")
    with ThreadPoolExecutor(1) as thread, database() as holder, database() as observer:
        with holder.transaction():
            holder.execute("LOCK TABLE controlplane_job IN EXCLUSIVE MODE")
            asked = thread.submit(project.client.call, "POST", path)
            end_waiting(observer, 'INSERT INTO "controlplane_job"')
        answer = asked.result()
    assert refusal(answer) == (503, "the database does not answer; try again")
    assert answer.headers["Retry-After"] == "1"
    project.done(project.client.post(path))


# docs/how-to/operating.md; the tests' services have two processes of the proxy.
DOCUMENTED = {
    "perch-api": 17,
    "perch-worker": 11,
    "perch-proxy": 10,
    "perch-metrics": 2,
    "perch-up": 2,
}
COUNT = (
    "SELECT application_name, count(*) FROM pg_stat_activity"
    " WHERE datname = 'perch' AND pid <> pg_backend_pid() GROUP BY 1"
)
CALLERS = 24


@pytest.mark.thorough
def test_no_process_has_more_than_documented(project: Project) -> None:
    most: Counter[str] = Counter()

    def create(number: int) -> None:
        client = project.client.another()
        client.post(project.path + "/branches", {"branch": {"name": f"crowd-{number}"}})
        for _ in range(10):
            client.get(project.path + "/branches")

    figures = (project.stack.state_dir / "metrics-address").read_text().strip()
    assert requests.get(figures, timeout=10).ok
    with ThreadPoolExecutor(CALLERS) as threads, project.stack.database() as watching:
        calls = [threads.submit(create, number) for number in range(CALLERS)]

        def is_settled() -> bool:
            return all(one["status"] in ENDED for one in project.operations())

        def have_ended() -> bool:
            for name, count in watching.execute(COUNT).fetchall():
                most[name] = max(most[name], count)
            return all(call.done() for call in calls) and is_settled()

        wait_for(have_ended, "the calls and their operations", timeout=120)
        for call in calls:
            call.result()
    most.pop("", None)  # of the tests
    assert set(most) == set(DOCUMENTED)
    assert {name: count for name, count in most.items() if count > DOCUMENTED[name]} == {}


@override_settings(PROXY_PROCESSES=4)
def test_two_hosts_fit_debians_limit() -> None:
    assert needed_connections(hosts=2) == 87
    with override_settings(PROXY_PROCESSES=2):
        assert {f"perch-{name}": most for name, most in most_connections().items()} == DOCUMENTED


@pytest.mark.django_db(transaction=True)
def test_threads_that_wait_for_a_project_hold_no_connection(account: Account) -> None:
    project, other = (make_project(account, Host.objects.get()) for _ in range(2))
    begun: set[int] = set()

    def change(number: int) -> str:
        with connection.cursor() as cursor:
            begun.update(*cursor.execute("SELECT pg_backend_pid()").fetchall())
        return locked_in_thread(project.id)

    with ThreadPoolExecutor(9) as threads:
        with locked_project(project.id):
            waiting = [threads.submit(change, number) for number in range(8)]
            wait_for(lambda: len(begun) == 8, "all to wait", timeout=5)
            wait_for(lambda: not holding(begun), "all to give their connections back", timeout=5)
            locking = threads.submit(locked_in_thread, other.id)
            assert locking.result(timeout=5 * load()) == other.id
        assert {one.result() for one in waiting} == {project.id}


def holding(pids: set[int]) -> set[int]:
    """Return those of these server processes that still run, and all that wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND (pid = ANY(%s) OR wait_event_type = 'Lock')",
            [list(pids)],
        )
        return {pid for (pid,) in cursor.fetchall()}


def locked_in_thread(project_id: str) -> str:
    try:
        with locked_project(project_id) as locked:
            return locked.id
    finally:
        connection.close()
