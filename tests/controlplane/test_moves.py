"""Projects move between two hosts, as real processes with state directories of their own."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import past
from tests.support.client import Client
from tests.support.moves import (
    LARGE,
    ROWS,
    await_any_end,
    await_end,
    await_known,
    await_removal,
    await_step,
    is_moving,
    living_on,
    move,
    on_disk,
    operation,
)
from tests.support.place import Place
from tests.support.second_host import (
    NAME,
    SecondHost,
    hosts,
    placing_on,
    running,
    second_host,
    variables,
)
from tests.support.service import Service
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def test_a_project_moves_with_its_branches_snapshots_and_history(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    at, _ = past.write(place, "first")
    past.with_history(place)
    child = place.new_branch_id()
    snapshot = place.done(place.client.post(place.branch_path(rest="/snapshot")))["snapshot"]
    past.write(place, "second")
    place.suspend()
    wait_for(lambda: past.history(place)["latest"] > at, "the history")
    ended = await_end(place, move(place, NAME))
    steps = {step["name"]: step["detail"] for step in ended["steps"]}
    assert steps["copying"]["bytes"] > 1 << 20
    assert living_on(place) == NAME
    for branch in (place.branch_id, child):
        assert second.stack.data_dir(branch).is_dir()
        await_removal(stack, branch)
    await_known(place)
    # The endpoint wakes there by either host's proxy, and its history goes on.
    assert place.query("SELECT count(*) FROM notes") == (2,)
    assert place.query("SELECT count(*) FROM notes", port=second.stack.proxy_port) == (2,)
    moved = Place(second.stack, place.client, place.created)
    assert moved.sql("SELECT lower('Ä')") == [("ä",)]
    past_branch = moved.new_branch_id(parent_timestamp=at)
    assert past.notes(moved, past_branch) == ["first"]
    assert past.notes(moved, child) == ["first"]
    body = {"name": "of the snapshot"}
    path = f"{place.path}/snapshots/{snapshot['id']}/restore"
    restored = place.done(place.client.post(path, body))["branch"]["id"]
    assert past.notes(moved, restored) == ["first"]
    await_end(place, move(place, "local"))
    assert living_on(place) == "local"
    assert place.query("SELECT count(*) FROM notes") == (2,)
    place.client.delete(place.path)
    wait_for(lambda: not on_disk(stack, place.branch_id), "the removal of the data")


def test_a_cancelled_move_leaves_the_project_where_it_was(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    past.write(place, "kept")
    place.suspend()
    os.killpg(second.worker.pid, signal.SIGSTOP)
    try:
        operator = Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())
        answer = operator.post(f"{place.path}/move", {"host_id": NAME})
        moving = answer["operations"][-1]["id"]
        wait_for(lambda: is_moving(place, moving, "connecting"), "the move to begin")
        place.client.post(f"{place.path}/operations/{moving}/cancel")
    finally:
        os.killpg(second.worker.pid, signal.SIGCONT)
    await_end(place, moving, "cancelled")
    assert living_on(place) == "local"
    assert place.query("SELECT text FROM notes") == ("kept",)
    wait_for(lambda: not on_disk(second.stack, place.branch_id), "the copy to be removed")


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_worker_that_is_killed_at_any_step_leaves_the_project_on_one_host_whole(
    state_dir: Path, victim: str
) -> None:
    first, there = state_dir / "first", state_dir / "second"
    first.mkdir(mode=0o711)
    service = Service(first)
    try:
        place = Place.create(service.stack, service.client)
        place.sql(LARGE)
        child = place.new_branch_id()
        place.suspend()
        with second_host(service.stack, there) as second, ExitStack() as others:
            worker = second.worker
            # How long after the beginning of the copy the worker dies, in seconds.
            for delay in (0.0, 0.3, 0.6, 0.9, 1.2):
                home = living_on(place)
                moving = move(place, NAME if home == "local" else "local")
                await_step(place, moving, "connecting")
                time.sleep(delay)
                if (victim == "source") == (home == "local"):
                    service.kill("worker")
                else:
                    os.killpg(worker.pid, signal.SIGKILL)
                    worker.wait(10)
                    environment, log = variables(service.stack, there), there / "worker.log"
                    worker = others.enter_context(running("worker", environment, log))
                await_any_end(place, moving)
                is_moved = operation(place, moving)["status"] == "finished"
                assert (living_on(place) != home) == is_moved
                has: Stack = service.stack
                lacks: Stack = second.stack
                if living_on(place) != "local":
                    has, lacks = lacks, has
                for branch in (place.branch_id, child):
                    await_removal(lacks, branch)
                    assert has.data_dir(branch).is_dir()
                assert place.query("SELECT count(*) FROM large") == (ROWS,)
                place.suspend()
            if living_on(place) != "local":
                await_end(place, move(place, "local"))
    finally:
        service.down()


def test_a_drained_host_is_emptied(stack: Stack, second: SecondHost) -> None:
    client = stack.client()
    with placing_on(stack, NAME):
        created = [Place.create(second.stack, client).created for _ in range(3)]
    # As clients reach them by the first host, where they are to live.
    places = [Place(stack, client, one) for one in created]
    for number, place in enumerate(places):
        await_known(place)
        with place.connect() as connection:
            connection.execute(f"CREATE TABLE notes AS SELECT 'row {number}' AS text")
    places[0].suspend()
    done = hosts(stack, "drain", NAME)
    assert "Projects that are being moved: 3." in done.stdout, done.stderr
    wait_for(lambda: {living_on(place) for place in places} == {"local"}, "the moves", timeout=120)
    for number, place in enumerate(places):
        assert place.query("SELECT text FROM notes", port=stack.proxy_port) == (f"row {number}",)
        await_removal(second.stack, place.branch_id)
