"""Running computes move with their project to another host, and hardly stop."""

import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.support import past
from tests.support.filesystems import free_bytes, mounted
from tests.support.moves import (
    LARGE,
    ROWS,
    Writer,
    await_any_end,
    await_end,
    await_handing_over,
    await_removal,
    await_step,
    living_on,
    move,
    move_by_api,
    on_disk,
    operation,
)
from tests.support.place import Place, serves
from tests.support.processes import postmaster_in
from tests.support.second_host import NAME, SecondHost, running, second_host, variables
from tests.support.service import Service
from tests.support.stack import Stack
from tests.support.waiting import load, wait_for

# Bytes that the disk may have less after a move: segments of the log. The table has more.
LEFT = 60 << 20
# Bytes of at least two segments of the log.
SEGMENTS = 32 << 20
# How long after the beginning of a phase a worker dies, in seconds.
DELAYS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


def timeline(stack: Stack, endpoint_id: str) -> int:
    with stack.compute(endpoint_id, "postgres") as platform:
        row = platform.execute("SELECT timeline_id FROM pg_control_checkpoint()").fetchone()
        assert row is not None
        return int(row[0])


def started_at(place: Place) -> str:
    return str(place.endpoint()["started_at"])


def test_a_compute_moves_with_what_its_log_does_not_have(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    past.with_history(place)
    at, _ = past.write(place, "first")
    child = place.new_branch_id()
    past.write(place, "second")
    with place.connect() as connection:
        connection.execute("CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 5000) AS n")
        connection.execute("CREATE UNIQUE INDEX ON unlogged (n)")
        connection.execute("CREATE TABLE counted AS SELECT generate_series(1, 100) AS n")
        connection.execute("SELECT count(*) FROM counted")
        connection.execute("CREATE ROLE newcomer LOGIN PASSWORD 'made by SQL 1'")
    chains = past.left_of_history(place)[0]
    with Writer(place) as writer:
        ended = await_end(place, move(place, NAME))
        writer.await_more()
    writer.check()
    steps = {step["name"]: step for step in ended["steps"]}
    print("handing over took", steps["handing_over"]["duration_ms"], "ms")
    print("writes paused for", round(writer.longest_pause, 2), "s")
    assert place.query("SELECT count(*), max(n) FROM unlogged") == (5000, 5000)
    assert place.query("SELECT n FROM unlogged WHERE n = 77") == (77,)
    scans = "SELECT seq_scan > 0 FROM pg_stat_user_tables WHERE relname = 'counted'"
    assert place.query(scans) == (True,)
    assert place.query("SELECT 1", user="newcomer", password="made by SQL 1") == (1,)
    # It was never promoted, and its history goes on without a gap.
    assert timeline(second.stack, place.endpoint_id) == 1
    moved = Place(second.stack, place.client, place.created)
    third, _ = past.write(moved, "third")
    moved.suspend()
    wait_for(lambda: past.history(place)["latest"] > third, "the history")
    assert past.left_of_history(place)[0] == chains
    assert past.notes(moved, moved.new_branch_id(parent_timestamp=at)) == ["first"]
    assert past.notes(moved, moved.new_branch_id(parent_timestamp=third)) == [
        *("first", "second", "third")
    ]
    assert past.notes(moved, child) == ["first"]
    await_removal(stack, place.branch_id)
    await_end(place, move(place, "local"))


def test_a_cancel_while_it_is_followed_does_not_stop_the_compute(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    place.sql(LARGE)
    before = started_at(place)
    with place.connect() as connection:
        moving = move_by_api(place, NAME)
        await_step(place, moving, "copying")
        os.killpg(second.worker.pid, signal.SIGSTOP)
        try:
            place.client.post(f"{place.path}/operations/{moving}/cancel")
            await_end(place, moving, "cancelled")
        finally:
            os.killpg(second.worker.pid, signal.SIGCONT)
        assert serves(connection)
    assert started_at(place) == before
    assert living_on(place) == "local"
    wait_for(lambda: not on_disk(second.stack, place.branch_id), "the copy to be removed")


@pytest.mark.thorough
def test_a_compute_that_writes_much_is_followed_through_many_segments(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    with Writer(place, size=1 << 20) as writer:
        moving = move(place, NAME)
        await_step(place, moving, "copying")
        await_end(place, moving)
        writer.await_more()
    writer.check()
    (size,) = place.query("SELECT sum(length(words)) FROM written")
    assert size > SEGMENTS
    await_end(place, move(place, "local"))


@pytest.mark.thorough
def test_clients_stay_while_a_suspend_waits_for_the_move(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    place.sql(LARGE)
    moving = move_by_api(place, NAME)
    await_step(place, moving, "copying")
    os.killpg(second.worker.pid, signal.SIGSTOP)
    try:
        answer = place.client.post(f"{place.path}/endpoints/{place.endpoint_id}/suspend")
        assert answer["operations"][0]["status"] == "scheduling"
        assert place.query("SELECT 1") == (1,)
        assert place.query("SELECT 1", pooled=True) == (1,)
        place.client.post(f"{place.path}/operations/{moving}/cancel")
        await_end(place, moving, "cancelled")
    finally:
        os.killpg(second.worker.pid, signal.SIGCONT)
    wait_for(lambda: place.state() == "idle", "the suspend")


def test_a_cancel_while_it_is_stopped_runs_the_compute_again(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    before = started_at(place)
    with Writer(place) as writer:
        moving = move_by_api(place, NAME)
        await_handing_over(place)
        os.killpg(second.worker.pid, signal.SIGSTOP)
        try:
            place.client.post(f"{place.path}/operations/{moving}/cancel")
            await_end(place, moving, "cancelled")
            writer.await_more()
        finally:
            os.killpg(second.worker.pid, signal.SIGCONT)
    writer.check()
    assert started_at(place) > before
    assert living_on(place) == "local"
    assert place.state() == "active"
    wait_for(lambda: not on_disk(second.stack, place.branch_id), "the copy to be removed")


def test_a_compute_that_dies_while_it_is_followed_runs_again_and_moves(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    place.sql(LARGE)

    def is_killed(postmaster: psutil.Process) -> bool:
        """Whether the compute was killed while it was followed: a fast move has stopped it."""
        # On the disk it is seen at once. An operation's steps are written once a second, by when
        # the compute may have been stopped.
        wait_for(lambda: on_disk(second.stack, place.branch_id), "the copy to begin")
        os.killpg(second.worker.pid, signal.SIGSTOP)
        try:
            postmaster.kill()
        except psutil.NoSuchProcess:
            return False
        finally:
            os.killpg(second.worker.pid, signal.SIGCONT)
        return True

    with Writer(place) as writer:
        postmaster = place.postmaster()
        moving = move(place, NAME)
        while not is_killed(postmaster):
            await_end(place, moving)
            await_end(place, move(place, "local"))
            postmaster = place.postmaster()
            moving = move(place, NAME)
        await_end(place, moving)
        writer.await_more()
    writer.check()
    assert living_on(place) == NAME
    assert place.query("SELECT count(*) FROM large") == (ROWS,)
    await_end(place, move(place, "local"))


def test_a_standby_that_dies_only_delays_the_move(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    there = second.stack.data_dir(place.branch_id)

    def is_ready() -> bool:
        with suppress(FileNotFoundError):
            return (there / "postmaster.pid").read_text().rstrip().endswith("ready")
        return False

    def is_killed() -> bool:
        """Whether the standby was killed while the move needed it: a fast move is past that."""
        os.killpg(second.worker.pid, signal.SIGSTOP)
        try:
            is_needed = is_ready() and (there / "standby.signal").exists()
            if is_needed:
                postmaster_in(there).kill()
        finally:
            os.killpg(second.worker.pid, signal.SIGCONT)
        return is_needed

    with Writer(place) as writer:
        moving = move(place, NAME)
        wait_for(is_ready, "the standby")
        while not is_killed():
            await_end(place, moving)
            await_end(place, move(place, "local"))
            moving = move(place, NAME)
            wait_for(is_ready, "the standby")
        began = time.monotonic()
        ended = await_end(place, moving)
        assert time.monotonic() - began < 30 * load()
        writer.await_more()
    writer.check()
    assert ended["failures_count"] == 1
    (error,) = (one["detail"]["error"] for one in ended["steps"] if "error" in one["detail"])
    # The second, if it had replayed everything and was about to be stopped.
    words = "the standby on the other host has ended", "did not end where the compute did"
    assert any(one in error for one in words)
    assert living_on(place) == NAME
    await_end(place, move(place, "local"))


def test_several_computes_move_at_once_also_one_of_a_later_timeline(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    past.with_history(place)
    at, _ = past.write(place, "first")
    past.write(place, "second")
    place.suspend()
    wait_for(lambda: past.history(place)["latest"] > at, "the history")
    branch = place.new_branch_id(parent_timestamp=at)
    assert past.notes(place, branch) == ["first"]
    other = place.client.get(place.branch_path(branch, "/endpoints"))["endpoints"][0]["id"]
    place.start()
    with Writer(place) as writer:
        await_end(place, move(place, NAME))
        writer.await_more()
    writer.check()
    print("writes paused for", round(writer.longest_pause, 2), "s")
    wait_for(lambda: place.endpoint(other)["current_state"] == "active", "the other's start")
    assert (timeline(second.stack, place.endpoint_id), timeline(second.stack, other)) == (1, 2)
    moved = Place(second.stack, place.client, place.created)
    assert moved.sql("SELECT text FROM notes", endpoint_id=other) == [("first",)]
    ((now,),) = moved.sql(
        "INSERT INTO notes VALUES ('third') RETURNING clock_timestamp()", endpoint_id=other
    )
    moved.suspend(other)
    wait_for(lambda: past.history(place, branch).get("latest", "") > now.isoformat(), "the history")
    await_end(place, move(place, "local"))


@pytest.mark.thorough
def test_a_running_parent_and_its_child_share_blocks_on_the_other_host_too() -> None:
    with mounted("xfs", size=4 << 30) as disk:
        first, there = disk / "first", disk / "second"
        first.mkdir(mode=0o711)
        service = Service(first)
        try:
            place = Place.create(service.stack, service.client)
            place.sql(LARGE)
            # Otherwise autovacuum rewrites each page, perhaps during the move.
            place.sql("VACUUM (FREEZE) large")
            children = [place.new_branch_id() for _ in range(3)]
            with second_host(service.stack, there) as second:
                before = free_bytes(disk)
                with Writer(place) as writer:
                    await_end(place, move(place, NAME))
                    writer.await_more()
                for branch in (place.branch_id, *children):
                    assert second.stack.data_dir(branch).is_dir()
                    await_removal(service.stack, branch)
                wait_for(lambda: before - free_bytes(disk) < LEFT, "the blocks to be shared")
                moved = Place(second.stack, place.client, place.created)
                endpoint = moved.create_endpoint(children[0])["endpoint"]["id"]
                assert moved.sql("SELECT count(*) FROM large", endpoint_id=endpoint) == [(ROWS,)]
                await_end(place, move(place, "local"))
        finally:
            service.down()


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["copying", "handing_over"])
@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_worker_that_is_killed_leaves_a_running_project_on_one_host_whole(
    state_dir: Path, victim: str, phase: str
) -> None:
    first, there = state_dir / "first", state_dir / "second"
    first.mkdir(mode=0o711)
    service = Service(first)
    try:
        place = Place.create(service.stack, service.client)
        place.sql(LARGE)
        with second_host(service.stack, there) as second, ExitStack() as others:
            worker = second.worker
            for delay in DELAYS:
                home = living_on(place)
                with Writer(place) as writer:
                    moving = move(place, NAME if home == "local" else "local")
                    if phase == "copying":
                        await_step(place, moving, "connecting")
                        time.sleep(delay * 2)
                    else:
                        await_handing_over(place)
                        time.sleep(delay)
                    if (victim == "source") == (home == "local"):
                        service.kill("worker")
                    else:
                        os.killpg(worker.pid, signal.SIGKILL)
                        worker.wait(10)
                        environment, log = variables(service.stack, there), there / "worker.log"
                        worker = others.enter_context(running("worker", environment, log))
                    await_any_end(place, moving)
                    writer.await_more()
                writer.check()
                is_moved = operation(place, moving)["status"] == "finished"
                assert (living_on(place) != home) == is_moved
                has: Stack = service.stack
                lacks: Stack = second.stack
                if living_on(place) != "local":
                    has, lacks = lacks, has
                await_removal(lacks, place.branch_id)
                assert has.data_dir(place.branch_id).is_dir()
                assert place.query("SELECT count(*) FROM large") == (ROWS,)
                print(victim, phase, delay, is_moved, round(writer.longest_pause, 2))
            if living_on(place) != "local":
                await_end(place, move(place, "local"))
    finally:
        service.down()
