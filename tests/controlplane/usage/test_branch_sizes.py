"""The limit of a branch's size by its account's plan, and what happens to a larger branch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.compute.data.branch_data import data_dir
from controlplane.models import BRANCH_SIZE_LIMITS, Account, Branch, Endpoint, Host, Plan
from controlplane.operations.rounds.sizes import measure
from tests.controlplane.rows import make_project
from tests.support.place import Place
from tests.support.stack import Stack
from tests.support.waiting import wait_for

LIMIT = BRANCH_SIZE_LIMITS[Plan.FREE]


@pytest.fixture
def place(stack: Stack) -> Iterator[Place]:
    """A project on the free plan."""
    client = stack.client(plan="free")
    made = Place(stack, client, client.new_project())
    yield made
    made.client.call("DELETE", made.path)


def grow(place: Place, size: int) -> None:
    """Make the branch's database this large, at once, by a file without content."""
    data = place.stack.data_dir(place.branch_id)
    ((oid,),) = place.sql("SELECT oid FROM pg_database WHERE datname = current_database()")
    path = data / "base" / str(oid) / "bulk"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.truncate(descriptor, size)
    os.close(descriptor)
    os.chown(path, data.stat().st_uid, data.stat().st_gid)


def is_read_only(place: Place) -> bool:
    return bool(place.query("SHOW default_transaction_read_only") == ("on",))


def suspensions(place: Place) -> int:
    return len(place.endpoint_operations("suspend_compute"))


def test_the_limit_is_that_of_the_plan(stack: Stack, place: Place) -> None:
    project = place.client.get(place.path)["project"]
    assert project["branch_logical_size_limit"] == 512
    assert project["branch_logical_size_limit_bytes"] == 512 << 20
    assert place.query("SHOW temp_file_limit") == ("512MB",)
    unlimited = stack.client()
    made = unlimited.new_project(wait=False)["project"]
    assert made["branch_logical_size_limit"] == 1 << 30


def test_a_compute_that_does_not_tell_its_size_has_a_limit_too(
    account: Account, host: Host, settings: Any, tmp_path: Path
) -> None:
    settings.STATE_DIR, settings.SOCKET_DIR = tmp_path, tmp_path / "sockets"
    make_project(account, host)
    Endpoint.objects.update(current_state="active")
    branch = Branch.objects.get()
    (data := data_dir(branch.id)).mkdir(parents=True)
    with (data / "file").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
    for size, least in ((None, 31 << 20), (5, 31 << 20), (200 << 20, 200 << 20)):
        Branch.objects.update(logical_size=size, auxiliary_size=0)
        measure(Endpoint.objects.all())
        branch.refresh_from_db()
        assert branch.logical_size == size
        assert least <= branch.stored_size < max(least, 64 << 20) + 64


@pytest.mark.thorough
def test_a_branch_over_its_limit_is_read_only_until_it_is_smaller(place: Place) -> None:
    with place.connect() as connection:
        connection.execute("CREATE TABLE kept (i int)")
    grow(place, LIMIT)
    place.suspend()
    # The size is measured when the compute starts.
    assert is_read_only(place)
    with place.connect() as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute("DELETE FROM kept")
        connection.execute("VACUUM kept")
    grow(place, 0)
    wait_for(lambda: not is_read_only(place), "the end of read-only")
    assert suspensions(place) == 1


@pytest.mark.thorough
def test_a_branch_far_over_its_limit_is_suspended_when_it_grows_further(place: Place) -> None:
    grow(place, LIMIT)
    place.suspend()
    assert is_read_only(place)
    with place.connect() as connection:
        # A client that has sent no query yet is passed to the next compute.
        connection.execute("SELECT 1")
        grow(place, round(LIMIT * 1.3))
        wait_for(lambda: suspensions(place) == 2, "the endpoint to be suspended")
        place.settle()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    # Only growth after a start counts: the owner can connect and free space.
    assert is_read_only(place)
    assert place.query("SELECT 1") == (1,)
    assert suspensions(place) == 2


def test_empty_files_count(place: Place) -> None:
    def stored_beside_databases() -> int:
        with place.stack.database() as metadata:
            query = "SELECT auxiliary_size, logical_size FROM controlplane_branch WHERE id = %s"
            ((size, logical_size),) = metadata.execute(query, [place.branch_id]).fetchall()
            return -1 if logical_size is None else int(size)

    place.start()
    wait_for(lambda: stored_beside_databases() == 0, "the first measurement")
    data = place.stack.data_dir(place.branch_id)
    owner = data.stat()
    ((oid,),) = place.sql("SELECT oid FROM pg_database WHERE datname = current_database()")
    for folder in (data / "base" / str(oid), data / "base" / "more", data / "pg_wal"):
        folder.mkdir(exist_ok=True)
        for number in range(5_000):
            (folder / f"{number}x").touch(0o600)
            os.chown(folder / f"{number}x", owner.st_uid, owner.st_gid)
    place.suspend()
    place.start()
    of_files = 3 * 5_000 * 4096
    allowed = 32 << 20
    wait_for(lambda: stored_beside_databases() > of_files - allowed, "the files to count")
