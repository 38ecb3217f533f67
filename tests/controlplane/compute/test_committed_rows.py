"""A new branch has all that was committed on its parent, and is independent from then on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.support.project import Project
from tests.support.waiting import wait_for


def child_of(project: Project, parent_id: str | None = None) -> str:
    """Create a child whose endpoint runs. Returns the endpoint's id."""
    attributes = {"parent_id": parent_id} if parent_id else {}
    return str(project.new_branch(endpoint=True, **attributes)["endpoints"][0]["id"])


@contextmanager
def writing(project: Project) -> Iterator[list[int]]:
    """A client that commits one number after another. Yields the list of those whose COMMIT
    returned."""
    committed: list[int] = []
    over = threading.Event()

    def write() -> None:
        with project.compute() as connection:
            while not over.is_set():
                number = len(committed)
                # The rows are large, so that the log fills several segments while the copy is made.
                connection.execute(
                    "INSERT INTO numbers VALUES (%s, repeat(md5(%s::text), 3000))", [number, number]
                )
                committed.append(number)

    def checkpoint() -> None:
        """Checkpoint repeatedly: pages are written and old log is removed while the copy is
        made."""
        with project.compute() as connection:
            while not over.wait(0.05):
                connection.execute("CHECKPOINT")

    project.sql("CREATE TABLE numbers (number int PRIMARY KEY, padding text)")
    project.sql("ALTER TABLE numbers ALTER padding SET STORAGE EXTERNAL")
    threads = [threading.Thread(target=work) for work in (write, checkpoint)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(committed) > 50, "the first commits")
        yield committed
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("asleep", [False, True])
def test_a_child_holds_every_committed_row(project: Project, asleep: bool) -> None:
    project.sql("CREATE TABLE numbers AS SELECT generate_series(1, 10000) AS number")
    uncommitted = project.compute()
    uncommitted.execute("BEGIN")
    uncommitted.execute("INSERT INTO numbers VALUES (-1)")
    if asleep:
        project.suspend()
    child = child_of(project)
    uncommitted.close()
    sums = "SELECT count(*), sum(number) FROM numbers"
    assert project.sql(sums, endpoint_id=child) == [(10000, 50005000)]


@pytest.mark.thorough
def test_a_child_made_while_a_client_writes_holds_every_committed_row(project: Project) -> None:
    with writing(project) as committed:
        before = len(committed)
        child = child_of(project)
        after = len(committed)
    assert after > before, "the writer stood still while the branch was made"
    ((count, highest),) = project.sql(
        "SELECT count(*), max(number) FROM numbers", endpoint_id=child
    )
    # Every number committed before, in order without a gap, and none committed later.
    assert count == highest + 1
    assert before <= count <= after + 1
    assert project.sql(
        "SELECT count(*) FROM numbers WHERE padding <> repeat(md5(number::text), 3000)",
        endpoint_id=child,
    ) == [(0,)]


@pytest.mark.thorough
def test_its_indexes_agree_with_its_tables(project: Project) -> None:
    with writing(project):
        child = child_of(project)
    with project.compute(child) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        connection.execute("SELECT bt_index_check('numbers_pkey', true)")


@pytest.mark.thorough
def test_parent_and_child_are_independent(project: Project) -> None:
    project.sql("CREATE TABLE places AS SELECT 'both' AS place")
    child = child_of(project)
    project.sql("UPDATE places SET place = 'parent'")
    project.sql("INSERT INTO places VALUES ('child')", endpoint_id=child)
    project.sql("CREATE DATABASE of_the_child", endpoint_id=child)
    assert project.sql("SELECT place FROM places") == [("parent",)]
    rows = project.sql("SELECT place FROM places ORDER BY place", endpoint_id=child)
    assert rows == [("both",), ("child",)]
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        project.stack.compute(project.endpoint_id, "of_the_child")


@pytest.mark.thorough
def test_a_child_of_a_crashed_parent_has_all_rows(project: Project) -> None:
    project.sql("CREATE TABLE numbers AS SELECT generate_series(1, 1000) AS number")
    project.sql("CHECKPOINT")
    project.sql("INSERT INTO numbers SELECT generate_series(1001, 2000)")
    project.postmaster().kill()
    wait_for(lambda: project.endpoint()["current_state"] == "idle", "idle after the crash")
    child = child_of(project)
    assert project.sql("SELECT count(*) FROM numbers", endpoint_id=child) == [(2000,)]
