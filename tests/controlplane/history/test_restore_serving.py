"""A restore of an active branch to a past moment: the compute serves while the past is recovered,
and is stopped only for the switch."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from controlplane.compute.host.filesystem import history_lock
from tests.controlplane.cancel_retry import cancel, ended, retry
from tests.selection import first_of
from tests.support.past import history, notes, with_history, write
from tests.support.project import Project
from tests.support.waiting import wait_for


@pytest.fixture
def past(fresh_project: Project) -> tuple[Project, str]:
    """A project, and a moment of its first branch after which more was written."""
    project = with_history(fresh_project)
    at, _ = write(project, "first")
    write(project, "second")
    project.sql("CREATE TABLE written (number integer)")
    return project, at


def restore(project: Project, at: str, branch_id: str | None = None, **body: Any) -> Any:
    """Ask for the restore of a branch to a past moment of the project's first branch."""
    body |= {"source_branch_id": project.branch_id, "source_timestamp": at}
    return project.client.post(project.branch_path(branch_id, "/restore"), body)


class Clients:
    """Clients of an endpoint, through the proxy: one runs a long query, another writes rows, each
    on a new connection."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.committed: list[int] = []
        self._stopped = False
        self._sleeping = threading.Thread(target=self._sleep)
        self._writing = threading.Thread(target=self._write)

    @property
    def sleeps(self) -> bool:
        return self._sleeping.is_alive()

    def _connect(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.uri, hostaddr="127.0.0.1", connect_timeout=30)

    def _sleep(self) -> None:
        with pytest.raises(psycopg.OperationalError), self._connect() as connection:
            connection.execute("SELECT pg_sleep(600)")

    def _write(self) -> None:
        number = 0
        while not self._stopped:
            number += 1
            try:
                with self._connect() as connection:
                    connection.execute("INSERT INTO written VALUES (%s)", [number])
                self.committed.append(number)
            except psycopg.Error:
                time.sleep(0.02)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._sleeping.start()
        self._writing.start()
        try:
            self.wait_for_write()
            yield
        finally:
            self._stopped = True
            self._writing.join()

    def wait_for_write(self) -> None:
        """Wait until a row is committed that is written from now on."""
        last = len(self.committed) + 1  # one may be on its way
        wait_for(lambda: len(self.committed) > last, "a row that is written now", timeout=5)


@pytest.mark.parametrize("kept", first_of([None, "as it was"]))
@pytest.mark.parametrize("from_another", first_of([False, True]))
def test_the_compute_serves_until_the_past_is_recovered(
    past: tuple[Project, str], kept: str | None, from_another: bool
) -> None:
    project, at = past
    uri = project.created["connection_uris"][0]["connection_uri"]
    branch_id, endpoint_id = project.branch_id, project.endpoint_id
    if from_another:
        made = project.new_branch(endpoint=True)
        branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
        uri = uri.replace(project.endpoint_id, endpoint_id)
        wait_for(lambda: history(project, branch_id).get("earliest"), "the first base copy")
    clients = Clients(uri)
    with clients.at_work():
        with project.locked(history_lock(project.branch_id)):  # so nothing is recovered yet
            answer = restore(project, at, branch_id, preserve_under_name=kept)
            assert [one["action"] for one in answer["operations"]] == [
                "create_branch",
                "suspend_compute",
                "create_branch",
                "start_compute",
            ]
            clients.wait_for_write()
            time.sleep(1)
            assert clients.sleeps
            clients.wait_for_write()
        project.done(answer)
        wait_for(lambda: not clients.sleeps, "the end of the long query")
    for operation in answer["operations"]:
        assert project.operation(operation["id"])["failures_count"] == 0, operation
    # What was recovered is the branch's data now: it was not copied, and nothing is left of it.
    recovered = answer["operations"][0]["branch_id"]
    assert is_gone(project, recovered)
    assert not list(project.stack.state_dir.glob(f"*/*{recovered}*"))
    assert project.sql("SELECT text FROM notes", endpoint_id=endpoint_id) == [("first",)]
    # Everything that was committed meanwhile is kept: in the branch that was asked for, or in the
    # history.
    if kept:
        branches = project.client.get(project.path + "/branches")["branches"]
        (before_id,) = (one["id"] for one in branches if one["name"] == kept)
    else:
        (restored,) = history(project, branch_id)["restores"]
        moment = datetime.fromisoformat(restored["at"]) - timedelta(microseconds=1)
        before = project.new_branch(parent_id=branch_id, parent_timestamp=moment.isoformat())
        before_id = before["branch"]["id"]
    assert notes(project, before_id) == ["first", "second"]
    (endpoint,) = (one for one in project.endpoints() if one["branch_id"] == before_id)
    rows = project.sql("SELECT number FROM written ORDER BY 1", endpoint_id=endpoint["id"])
    assert [number for (number,) in rows][: len(clients.committed)] == clients.committed


def test_a_branch_whose_past_is_recovered_is_not_deleted_meanwhile(
    past: tuple[Project, str],
) -> None:
    project, _ = past
    source = project.new_branch(endpoint=True)["branch"]["id"]
    wait_for(lambda: history(project, source).get("earliest"), "the first base copy")
    body = {
        "source_branch_id": source,
        "source_timestamp": history(project, source)["earliest"],
    }
    restored = project.new_branch()["branch"]["id"]
    with project.locked(history_lock(source)):
        answer = project.client.post(project.branch_path(restored, "/restore"), body)
        assert project.client.call("DELETE", project.branch_path(source)).status_code == 423
    project.done(answer)
    project.done(project.client.delete(project.branch_path(source)))


def test_a_cancelled_recovery_disturbs_no_client_and_can_be_retried(
    past: tuple[Project, str],
) -> None:
    project, at = past
    with project.compute() as client:
        with project.locked(history_lock(project.branch_id)):
            answer = restore(project, at, preserve_under_name="as it was")
            recovery = answer["operations"][0]
            assert len(cancel(project, recovery)) == 4
        for operation in answer["operations"]:
            assert ended(project, operation)["status"] == "cancelled"
        assert client.execute("SELECT count(*) FROM notes").fetchone() == (2,)
    wait_for(lambda: is_gone(project, recovery["branch_id"]), "the removal of what was recovered")
    again = retry(project, recovery)
    assert [one["action"] for one in again] == [one["action"] for one in answer["operations"]]
    project.done({"operations": again})
    assert project.sql("SELECT text FROM notes") == [("first",)]
    branches = project.client.get(project.path + "/branches")["branches"]
    assert {one["name"] for one in branches} == {"main", "as it was"}


def test_a_restore_that_is_cancelled_after_the_recovery_can_be_retried(
    past: tuple[Project, str],
) -> None:
    """Its recovered data is removed meanwhile, so the retry recovers it again."""
    project, at = past
    project.suspend()
    with project.locked():
        answer = restore(project, at)
        recovery, switch = answer["operations"]
        assert ended(project, recovery)["status"] == "finished"
        cancel(project, switch)
    assert ended(project, switch)["status"] == "cancelled"
    wait_for(lambda: is_gone(project, recovery["branch_id"]), "the removal of what was recovered")
    project.start()
    again = retry(project, switch)
    project.done({"operations": again})
    # The endpoint runs now, so it is suspended for the switch.
    expected = ["create_branch", "suspend_compute", "create_branch", "start_compute"]
    assert [one["action"] for one in again] == expected
    assert project.sql("SELECT text FROM notes") == [("first",)]


def is_gone(project: Project, branch_id: str) -> bool:
    with project.stack.database() as database:
        (row,) = database.execute(
            "SELECT deleted_at IS NOT NULL FROM controlplane_branch WHERE id = %s", [branch_id]
        ).fetchall()
    return bool(row[0])
