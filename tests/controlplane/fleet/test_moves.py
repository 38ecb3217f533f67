"""Projects move between two hosts, as real processes with state directories of their own."""

import os
import random
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.support import past
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
    move_by_api,
    on_disk,
    operation,
)
from tests.support.place import Connection, Place, last_words
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
        moving = move_by_api(place, NAME)
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


@pytest.mark.thorough
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
    hosts(stack, "resume", NAME)


def ports(place: Place, second: SecondHost) -> tuple[int, int]:
    return place.stack.proxy_port, second.stack.proxy_port


def await_both(place: Place, second: SecondHost) -> None:
    """Wait until the second host's proxy reaches the first host."""
    wait_for(lambda: place.is_served(port=second.stack.proxy_port), "the hosts to reach each other")


def move_and_wait(place: Place, to: str) -> None:
    await_end(place, move(place, to))
    assert living_on(place) == to


def test_pooled_clients_see_no_error(place: Place, second: SecondHost) -> None:
    """Neither those that have been parked for long, nor those that write all the time."""
    with place.connect() as client:
        client.execute("CREATE TABLE written (client int, n int)")
    clients: list[Connection] = []
    stopped = threading.Event()

    def write(number: int, client: Connection) -> int:
        written = 0
        while not stopped.is_set():
            client.execute("INSERT INTO written VALUES (%s, %s)", [number, written])
            written += 1
            time.sleep(0.01)
        return written

    with ThreadPoolExecutor(8) as pool:
        try:
            await_both(place, second)
            for port in ports(place, second):
                parked, busy = (place.connect(pooled=True, port=port) for _ in range(2))
                parked.execute("SET timezone TO 'Asia/Kathmandu'")
                clients += [parked, busy]
            writers: list[Future[int]] = [
                pool.submit(write, number, client) for number, client in enumerate(clients[1::2])
            ]
            for home in (NAME, "local"):
                move_and_wait(place, home)
                time.sleep(1)
                for client in clients[::2]:
                    assert client.execute("SELECT 1").fetchone() == (1,)
                    assert client.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
            stopped.set()
            written = [writer.result(60) for writer in writers]
        finally:
            stopped.set()
            for client in clients:
                client.close()
    kept = place.query("SELECT count(*), count(DISTINCT (client, n)) FROM written")
    assert kept == (sum(written), sum(written))


def test_direct_clients_are_told_and_reconnect_at_once(place: Place, second: SecondHost) -> None:
    """Connecting again never fails, by whichever host's proxy."""
    await_both(place, second)
    stopped = threading.Event()
    waits: list[float] = []

    def reconnect(port: int, pooled: bool) -> None:
        while not stopped.is_set():
            began = time.monotonic()
            with place.connect(port=port, pooled=pooled, connect_timeout=30) as client:
                waits.append(time.monotonic() - began)
                try:
                    for _ in range(random.randrange(1, 20)):
                        client.execute("SELECT 1")
                        time.sleep(0.02)
                except psycopg.errors.AdminShutdown:
                    assert not pooled

    with ThreadPoolExecutor(8) as pool:
        try:
            idle = [place.connect(port=port) for port in ports(place, second)]
            for client in idle:
                client.execute("SELECT 1")
            ways = [
                pool.submit(reconnect, port, pooled)
                for port in ports(place, second)
                for pooled in (False, True)
            ]
            wait_for(lambda: len(waits) > 20, "the clients to connect")
            move_and_wait(place, NAME)
            assert [last_words(client) for client in idle] == ["57P01", "57P01"]
            move_and_wait(place, "local")
            before = len(waits)
            wait_for(lambda: len(waits) > before + 20, "the clients to connect")
        finally:
            stopped.set()
        for way in ways:
            way.result(60)
    print(f"{len(waits)} connects, the longest {max(waits):.2f} s")


def test_a_parked_client_needs_a_password_that_is_still_valid(
    place: Place, second: SecondHost
) -> None:
    await_both(place, second)
    with place.connect(pooled=True) as client, place.connect(pooled=True) as other:
        client.execute("SELECT 1")
        other.execute("SELECT 1")
        place.suspend()
        move_and_wait(place, NAME)
        with place.connect(port=second.stack.proxy_port) as direct:
            direct.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{place.password}2aB'")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            client.execute("SELECT 1")
        reset = place.client.post(place.branch_path(rest=f"/roles/{place.role}/reset_password"))
        place.done(reset)
        assert last_words(other) == "57P01"
        place.password = reset["role"]["password"]
    move_and_wait(place, "local")
