"""What tools lose or falsify without an error when they recover a past moment: each test fails
without its guard."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tests.support.past import failure, history, notes, with_history, write
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def log_of(project: Project) -> Path:
    """The log of the first branch's last chain."""
    chains = project.stack.data_dir(project.branch_id).parent / "history"
    return max(chains.glob("[0-9]*")) / "log"


def copied_segments(project: Project) -> list[Path]:
    return [path.with_suffix("") for path in sorted(log_of(project).glob("*.sum"))]


@contextmanager
def history_held(project: Project) -> Iterator[None]:
    """Nothing is copied to the history of the project's first branch while the block lasts."""
    lock = project.stack.state_dir / "locks" / f"history-{project.branch_id}"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def lose_log(project: Project) -> None:
    """Let Postgres remove log that is not in the history yet."""
    with history_held(project), project.compute() as connection:
        connection.execute("SELECT pg_drop_replication_slot('perch_history')")
        for _ in range(8):
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("INSERT INTO notes VALUES ('lost')")
        connection.execute("CHECKPOINT")
        connection.execute("CHECKPOINT")
    wait_for(lambda: history(project)["gaps"], "the gap")


def is_refused(project: Project, moment: str) -> bool:
    body = {"branch": {"parent_timestamp": moment}}
    return refusal(project.client.call("POST", project.path + "/branches", json=body))[0] == 422


@pytest.mark.thorough
def test_another_branchs_log_is_not_replayed(stack: Stack) -> None:
    """Branches of one template have the same identifiers, timelines, positions and checkpoint."""
    one, other = (with_history(Project.create(stack, stack.client())) for _ in range(2))
    at, _ = write(one, "first")
    write(other, "of another")
    one.suspend()
    other.suspend()
    # Published after everything was written that belongs to the copy.
    wait_for(
        lambda: all(history(project)["log_bytes"] for project in (one, other)),
        "the copies of their logs",
    )
    (ours,), (theirs,) = copied_segments(one), copied_segments(other)
    assert ours.name == theirs.name
    ours.write_bytes(theirs.read_bytes())
    assert "log" in failure(one, parent_timestamp=at)


@pytest.mark.thorough
def test_no_moment_is_recovered_across_missing_log(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    before, _ = write(project, "before")
    project.sql("CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 40000)")
    at, _ = write(project, "after")
    project.new_branch(parent_timestamp=at)
    copied_segments(project)[1].unlink()
    assert "is missing or damaged" in failure(project, parent_timestamp=at)
    made = project.new_branch(parent_timestamp=before)["branch"]
    assert notes(project, made["id"]) == ["before"]


@pytest.mark.thorough
def test_a_position_leaves_out_a_transaction_that_was_open(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    write(project, "first")
    with project.compute() as connection:
        connection.autocommit = False
        connection.execute("INSERT INTO notes VALUES ('open')")
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        connection.commit()
    made = project.new_branch(parent_lsn=row[0])["branch"]
    assert notes(project, made["id"]) == ["first"]


@pytest.mark.thorough
def test_a_dropped_slot_whose_log_is_gone_leaves_a_visible_gap(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    before, _ = write(project, "before")
    project.new_branch(parent_timestamp=before)
    lose_log(project)
    (gap,) = history(project)["gaps"]
    assert gap["reason"] == "log lost"
    events = project.client.get(f"{project.path}/events", type="history.gap")["events"]
    assert [event["branch_id"] for event in events] == [project.branch_id]
    wait_for(lambda: "until" in history(project)["gaps"][0], "a base after the gap")
    inside = datetime.fromisoformat(gap["since"]) + timedelta(milliseconds=1)
    assert is_refused(project, inside.isoformat())
    after, _ = write(project, "after")
    made = project.new_branch(parent_timestamp=after)["branch"]
    assert notes(project, made["id"])[-2:] == ["lost", "after"]


@pytest.mark.thorough
def test_a_gap_begins_after_the_last_commit_that_was_copied(fresh_project: Project) -> None:
    """While a compute runs, only finished segments are copied: commits in the next one are not in
    the history yet, although they are older than the copy."""
    project = with_history(fresh_project)
    with history_held(project):
        copied, _ = write(project, "copied")
        project.sql("SELECT pg_switch_wal()")
        missing, _ = write(project, "missing")
    wait_for(lambda: copied_segments(project), "the copy of the finished segment")
    lose_log(project)
    wait_for(lambda: "until" in history(project)["gaps"][0], "a base after the gap")
    assert is_refused(project, missing)
    (gap,) = history(project)["gaps"]
    assert datetime.fromisoformat(gap["since"]) < datetime.fromisoformat(copied)
    made = project.new_branch(parent_timestamp=gap["since"])["branch"]
    assert notes(project, made["id"]) == ["copied"]


def restore(project: Project, at: str, **body: str) -> None:
    """Restore the first branch from its own past."""
    body |= {"source_branch_id": project.branch_id, "source_timestamp": at}
    project.done(project.client.post(project.branch_path(rest="/restore"), body))


@pytest.mark.thorough
def test_no_moment_is_recovered_without_the_first_segment_of_a_new_timeline(
    fresh_project: Project,
) -> None:
    project = with_history(fresh_project)
    first, _ = write(project, "first")
    restore(project, first)
    second, _ = write(project, "second")
    project.sql("SELECT pg_switch_wal()")
    third, _ = write(project, "third")
    project.new_branch(parent_timestamp=third)
    segment = copied_segments(project)[0]
    assert not segment.name.startswith("00000001")
    segment.unlink()
    for at in (second, third):
        assert "is missing or damaged" in failure(project, parent_timestamp=at)


@pytest.mark.thorough
def test_more_transactions_were_prepared_then_than_are_allowed_now(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    project.change(settings={"pg_settings": {"max_prepared_transactions": "40"}})
    write(project, "first")
    with project.compute() as connection:
        for number in range(40):
            connection.execute("BEGIN")
            connection.execute("INSERT INTO notes VALUES ('prepared')")
            connection.execute(f"PREPARE TRANSACTION '{number}'".encode())
        at, _ = write(project, "second")
        for number in range(40):
            connection.execute(f"ROLLBACK PREPARED '{number}'".encode())
    later, _ = write(project, "third")
    project.change(settings={"pg_settings": {}})
    assert project.sql("SHOW max_prepared_transactions") == [("0",)]
    made = project.new_branch(parent_timestamp=later)["branch"]
    assert notes(project, made["id"]) == ["first", "second", "third"]
    kept = project.new_branch(parent_timestamp=at)["branch"]
    allowed = {"pg_settings": {"max_prepared_transactions": "40"}}
    endpoint = project.create_endpoint(kept["id"], settings=allowed)["endpoint"]
    count = "SELECT count(*)::int FROM pg_prepared_xacts"
    assert project.sql(count, endpoint_id=endpoint["id"]) == [(40,)]


@pytest.mark.thorough
def test_what_a_past_state_has_beside_its_tables(fresh_project: Project) -> None:
    """Unlogged tables are empty, slots are gone, and prepared transactions hold their locks."""
    project = with_history(fresh_project)
    allowed = {"pg_settings": {"max_prepared_transactions": "5"}}
    project.change(settings=allowed)
    write(project, "first")
    # The base copy is taken when they exist.
    project.client.patch(project.path, {"project": {"history_retention_seconds": 0}})
    wait_for(lambda: not history(project)["bases"], "the end of the history")
    project.sql("CREATE UNLOGGED TABLE quick AS SELECT 1 AS number")
    project.sql("SELECT pg_create_physical_replication_slot('mine', true)")
    project.client.patch(project.path, {"project": {"history_retention_seconds": 3600}})
    with_history(project)
    with project.compute() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO notes VALUES ('prepared')")
        connection.execute("PREPARE TRANSACTION 'kept'")
    project.suspend()
    project.start()
    at, _ = write(project, "second")
    project.sql("COMMIT PREPARED 'kept'")
    made = project.new_branch(parent_timestamp=at)["branch"]
    endpoint = project.create_endpoint(made["id"], settings=allowed)["endpoint"]["id"]
    assert project.sql("SELECT count(*) FROM quick", endpoint_id=endpoint) == [(0,)]
    slots = project.sql("SELECT slot_name FROM pg_replication_slots", endpoint_id=endpoint)
    assert ("mine",) not in slots
    with project.compute(endpoint) as connection:
        with pytest.raises(psycopg.errors.LockNotAvailable), connection.transaction():
            connection.execute("LOCK TABLE notes NOWAIT")
        connection.execute("COMMIT PREPARED 'kept'")
        rows = connection.execute("SELECT text FROM notes ORDER BY ctid").fetchall()
    assert rows == [("first",), ("prepared",), ("second",)]


def test_log_of_a_first_start_is_held_before_the_first_look(stack: Stack) -> None:
    client = stack.client()
    project = Project.create(stack, client, wait=False)
    with history_held(project):
        wait_for(lambda: project.operations()[0]["status"] == "finished", "the first start")
        before, _ = write(project, "before")
        with project.compute() as connection:
            for _ in range(4):
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CREATE TABLE IF NOT EXISTS filler (id int)")
                connection.execute("INSERT INTO filler VALUES (1)")
            connection.execute("CHECKPOINT")
            connection.execute("CHECKPOINT")
    made = project.new_branch(parent_timestamp=before)["branch"]
    assert notes(project, made["id"]) == ["before"]
    assert history(project)["gaps"] == []
    client.delete(project.path)
