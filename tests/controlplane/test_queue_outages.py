"""The metadata database fails while the worker uses the queue: nothing is lost."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.processes import processes_of
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# The beginning of the statement that locks a project: Postgres shows its first 1,023 bytes.
PROJECT_LOCK = 'SELECT t."id", t."account_id", t."region_id", t."host_id"'
WAITING = "wait_event_type = 'Lock' AND query LIKE %s"


def end_waiting(observer: "psycopg.Connection[Any]", statement: str) -> None:
    """Close the connections of those who wait for a lock with that statement."""
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {WAITING}".encode()

    def found() -> list[Any]:
        return observer.execute(query, [f"%{statement}%"]).fetchall()

    wait_for(found, f"{statement} to wait")


@pytest.mark.thorough
def test_after_a_failed_heartbeat_others_follow(stack: Stack) -> None:
    with stack.database() as holder, stack.database() as observer:
        # Heartbeats of a worker that another test has killed stay for a while.
        observer.execute(
            "CREATE TEMP TABLE living AS SELECT id FROM procrastinate_workers"
            " WHERE last_heartbeat > now() - interval '5 s'"
        )
        with holder.transaction():
            holder.execute("SELECT FROM procrastinate_workers FOR UPDATE")
            end_waiting(observer, "UPDATE procrastinate_workers")
        observer.execute("CREATE TEMP TABLE broken_off AS SELECT clock_timestamp() AS at")
        heard = (
            "SELECT bool_and(last_heartbeat > at) FROM living"
            " JOIN procrastinate_workers USING (id), broken_off"
        )
        wait_for(lambda: observer.execute(heard).fetchone() == (True,), "all to be heard")


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["finish_job", "retry_job"])
def test_a_job_whose_end_cannot_be_written_ends_nevertheless(project: Project, ending: str) -> None:
    with project.stack.database() as holder, project.stack.database() as observer:
        with holder.transaction():
            with project.locked():
                asked = project.client.post(project.endpoint_path(rest="/restart"))
                job = (
                    f"SELECT FROM procrastinate_jobs WHERE lock = '{asked['operations'][0]['id']}'"
                )
                taken = f"{job} AND status = 'doing'".encode()
                wait_for(lambda: observer.execute(taken).fetchall(), "the job to be taken")
                holder.execute(f"{job} FOR UPDATE".encode())
                if ending == "retry_job":
                    row = "SELECT FROM controlplane_project WHERE id = %s FOR UPDATE"
                    holder.execute(row, [project.id])
            if ending == "retry_job":
                # The attempt fails at its end, so it must be repeated.
                end_waiting(observer, PROJECT_LOCK)
            end_waiting(observer, f"procrastinate_{ending}")
        wait_for(lambda: not observer.execute(job.encode()).fetchall(), "the job's end")
    project.done(asked)


@pytest.mark.thorough
def test_a_lane_that_was_interrupted_continues_by_itself(project: Project) -> None:
    worker = processes_of(project.stack, "worker")
    database = project.stack.database
    with database() as holder, database() as observer, holder.transaction():
        holder.execute("LOCK TABLE procrastinate_jobs IN EXCLUSIVE MODE")
        end_waiting(observer, "SET status = 'doing'")
    project.done(project.client.post(project.endpoint_path(rest="/restart")))
    assert processes_of(project.stack, "worker") == worker


def test_lanes_listen_again_after_a_database_that_accepted_no_connection(project: Project) -> None:
    listening = "FROM pg_stat_activity WHERE query LIKE 'LISTEN %procrastinate_queue%'"
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
            holder.execute("LOCK TABLE procrastinate_jobs IN EXCLUSIVE MODE")
            asked = thread.submit(project.client.call, "POST", path)
            end_waiting(observer, "procrastinate_defer")
        answer = asked.result()
    assert refusal(answer) == (503, "the database does not answer; try again")
    assert answer.headers["Retry-After"] == "1"
    project.done(project.client.post(path))
