"""A host with a small disk that fills up: what is refused, what continues, and how it recovers."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
import requests

from tests.controlplane.deployment.test_up import refused
from tests.support.filesystems import filled, free_bytes, mounted
from tests.support.place import Place
from tests.support.processes import processes_of
from tests.support.project import refusal
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_for

MIB = 1 << 20
RESERVE = 200 * MIB


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    """A service on a disk of its own, which reserves RESERVE bytes."""
    with (
        mounted("ext4", size=1200 * MIB) as state_dir,
        running_stack(state_dir, PERCH_DISK_RESERVE="200M") as stack,
    ):
        with stack.database() as metadata:
            # The log takes all the space that it may use between checkpoints now, and none later.
            for _ in range(8):
                metadata.execute("SELECT pg_logical_emit_message(false, 'test', 'x', true)")
                metadata.execute("SELECT pg_switch_wal()")
            metadata.execute("CHECKPOINT")
        yield stack


@pytest.fixture
def place(small: Stack) -> Iterator[Place]:
    with restored(small):
        made = new_place(small)
        yield made
        made.client.call("DELETE", made.path)


@contextmanager
def restored(small: Stack) -> Iterator[None]:
    """Check that no branch is left behind, nor part of one, and that the worker has published so:
    the next test relies on the space."""
    branches = small.state_dir / "branches"
    before = names(branches)
    yield
    wait_for(lambda: names(branches) == before, "the removal of what was created")
    wait_for(lambda: has_room(small), "the room to be published")


def has_room(stack: Stack) -> bool:
    with stack.database() as metadata:
        return metadata.execute(
            "SELECT disk_free_bytes > 2 * disk_reserve_bytes FROM controlplane_host"
        ).fetchone() == (True,)


def new_place(stack: Stack) -> Place:
    client = stack.client()
    return Place(stack, client, client.new_project())


def take_room(place: Place, size: int) -> Path:
    """Put a file of that many bytes into the branch."""
    data = place.stack.data_dir(place.branch_id)
    path = data / "base" / "bulk"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.posix_fallocate(descriptor, 0, size)
    os.close(descriptor)
    os.chown(path, data.stat().st_uid, data.stat().st_gid)
    return path


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.thorough
def test_a_branch_that_does_not_fit_is_refused_and_can_be_created_later(
    small: Stack, place: Place
) -> None:
    bulk = take_room(place, (free_bytes(small.state_dir) - RESERVE) * 2 // 3)
    before = names(small.state_dir / "branches")
    body = {"branch": {}, "endpoints": [{"type": "read_write"}]}
    made = place.client.post(f"{place.path}/branches", body)
    creation, start = place.client.finish(made)
    assert creation["status"] == start["status"] == "failed"
    assert "left beyond its reserve, and the branch needs" in creation["error"]
    assert "/" not in creation["error"]
    assert names(small.state_dir / "branches") == before
    assert place.is_served()
    bulk.unlink()
    endpoint_id = made["endpoints"][0]["id"]
    again = place.client.post(place.endpoint_path(endpoint_id, "/start"))
    assert [row["action"] for row in again["operations"]] == ["create_branch", "start_compute"]
    assert {row["status"] for row in place.client.finish(again)} == {"finished"}


@pytest.mark.thorough
def test_a_copy_stops_at_the_reserve_and_leaves_nothing(small: Stack, place: Place) -> None:
    """Another process uses the space that was reserved for the copy."""
    take_room(place, 300 * MIB)
    place.suspend()
    before = names(small.state_dir / "branches")
    made = place.client.post(f"{place.path}/branches", {"branch": {}})
    staging = small.state_dir / "branches" / f".{made['branch']['id']}"
    wait_for((staging / "data").exists, "the copy to begin")
    with filled(small.state_dir, leaving=RESERVE - 50 * MIB):
        (creation,) = place.client.finish(made)
        assert creation["status"] == "failed"
        assert "filled up to its reserve" in creation["error"]
        assert names(small.state_dir / "branches") == before


@pytest.mark.thorough
def test_a_project_that_did_not_fit_is_completed_by_a_connection_or_removed(small: Stack) -> None:
    with restored(small), ExitStack() as until_there_is_room:
        until_there_is_room.enter_context(filled(small.state_dir, leaving=RESERVE + 15 * MIB))
        first, second = (
            Place(small, client, client.post("/projects", {"project": {}}))
            for client in (small.client(), small.client())
        )
        for one in (first, second):
            assert {row["status"] for row in one.client.finish(one.created)} == {"failed"}
            assert one.state() == "idle"
        second.client.delete(second.path)
        wait_for(lambda: second.client.call("GET", second.path).status_code == 404, "the end")
        until_there_is_room.close()
        wait_for(first.is_served, "the project to come up by itself")
        first.client.delete(first.path)


def test_on_a_full_disk_everything_else_continues(small: Stack, place: Place) -> None:
    ballast = small.state_dir / "ballast"
    wait_for(lambda: ballast.exists(), "the ballast")
    with filled(small.state_dir, leaving=0):
        wait_for(lambda: not ballast.exists(), "the ballast to be given back")
        wait_for(lambda: asked_for_branch(place).status_code == 503, "branches to be refused")
        assert "has no room for new branches" in refusal(asked_for_branch(place))[1]
        assert place.client.call("POST", "/projects", json={"project": {}}).status_code == 503
        name = place.client.patch(place.path, {"project": {"name": "still here"}})
        assert name["project"]["name"] == "still here"
        assert place.query("SELECT 1") == (1,)
        wait_for(small.answers, "the service to be healthy")
    wait_for(ballast.exists, "the ballast to be held again")
    wait_for(lambda: asked_for_branch(place).ok, "branches to be made again")


@pytest.mark.thorough
def test_only_the_writer_that_fills_the_disk_is_stopped(small: Stack, place: Place) -> None:
    other = new_place(small)
    writer = threading.Thread(target=write_without_end, args=(place,))
    writer.start()
    try:
        wait_for(lambda: place.state() == "idle", "the writer to be stopped", timeout=60)
        writer.join(30)
        assert free_bytes(small.state_dir) > 0
        assert other.query("SELECT 1") == (1,)
        (start,) = place.client.finish(place.client.post(place.endpoint_path(None, "/start")))
        assert "it was filling this host's disk" in start["error"]
        assert "start again once there is space" in start["error"]
        events = place.client.get(f"{place.path}/events")["events"]
        (ended,) = (one for one in events if "became idle" in one["summary"])
        assert ended["summary"].endswith("became idle: it was filling this host's disk")
    finally:
        place.client.delete(place.path)
        other.client.delete(other.path)
        writer.join(30)


def asked_for_branch(place: Place) -> requests.Response:
    return place.client.call("POST", f"{place.path}/branches", json={})


def write_without_end(place: Place) -> None:
    with suppress(psycopg.Error), place.connect() as connection:
        connection.execute("CREATE TABLE much (words text)")
        while True:
            connection.execute(
                "INSERT INTO much SELECT repeat(md5(i::text), 30) FROM generate_series(1, 8000) i"
            )


@pytest.mark.thorough
def test_up_on_a_full_disk_says_so() -> None:
    with mounted("ext4", size=100 * MIB) as state_dir, filled(state_dir, leaving=0):
        assert "is full" in refused(state_dir)


@pytest.mark.thorough
def test_up_starts_everything_again_until_the_disk_has_room(tmp_path: Path) -> None:
    with mounted("ext4", size=1200 * MIB) as state_dir:
        # What `up` says is read meanwhile.
        log = tmp_path / "up.log"
        (state_dir / "up.log").symlink_to(log)
        with running_stack(state_dir) as stack:
            with filled(state_dir, leaving=0):
                (supervisor,) = processes_of(stack, "supervisor")
                supervisor.kill()
                wait_for(
                    lambda: "It tries again in 6 s" in log.read_text(),
                    "more failures than a first start may have",
                    timeout=300,
                )
                assert not stack.answers()
            wait_for(stack.answers, "the service", timeout=300)
            assert stack.process.poll() is None
