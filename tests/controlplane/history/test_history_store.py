"""The copy of the history in an object store, and the restore of a lost host from it."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest

from controlplane.history.store.objects import Store
from tests.support import commands
from tests.support.faulty_store import MODES, FaultyStore
from tests.support.numbers import Numbers
from tests.support.object_store import Bucket, bucket, opened, s3
from tests.support.place import Place
from tests.support.service import Service
from tests.support.waiting import load, wait_for

__all__ = ["bucket", "s3"]

pytestmark = pytest.mark.slow


def ran(bucket: Bucket, *arguments: str | Path, status: int = 0, **changes: str) -> str:
    """Run a command of `manage.py` with the store's settings; returns what it printed."""
    return commands.ran(*arguments, status=status, **{**bucket.environment, **changes})


def copied_at(place: Place, branch_id: str | None = None) -> datetime | None:
    found = place.client.get(place.branch_path(branch_id, "/history"))["history"]
    return datetime.fromisoformat(found["copied_at"]) if found.get("copied_at") else None


def copied_after(place: Place, at: datetime) -> bool:
    found = copied_at(place)
    return found is not None and found >= at


def rows_copied_after(store: Store, at: datetime) -> bool:
    names = [name for name in store.names("regions") if "/metadata/" in name]
    return any(name.rsplit("/", 1)[-1] > f"{at:%Y%m%dT%H%M%S.%fZ}" for name in names)


@pytest.fixture
def service(state_dir: Path, bucket: Bucket) -> Iterator[Service]:
    place = state_dir / "service"
    place.mkdir(mode=0o711)
    running = Service(place, **bucket.environment)
    yield running
    running.down()


def lose(service: Service) -> datetime:
    """Lose the host: all its processes and its state directory. Returns when."""
    service.kill_everything()
    at = datetime.now(UTC)
    service.down()
    shutil.rmtree(service.state_dir)
    return at


def restored(bucket: Bucket, state_dir: Path) -> tuple[Service, str]:
    new = state_dir / "restored"
    said = ran(bucket, "restore", "--from-store", "--state-dir", new)
    return Service(new, **bucket.environment), said


def numbers(place: Place) -> list[Any]:
    with place.connect() as connection:
        rows = connection.execute("SELECT number FROM numbers ORDER BY number").fetchall()
    return [number for (number,) in rows]


@pytest.mark.thorough
def test_a_lost_host_is_restored_with_every_row_that_was_copied(
    service: Service, bucket: Bucket, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.create(service.stack, service.client)
    never_started = place.new_branch_id(name="never started")
    with place.connect() as connection:
        connection.execute("CREATE ROLE by_sql LOGIN PASSWORD 'secret by sql'")
    changed = datetime.now(UTC)
    writer = Numbers(place, ends_with_service=True)
    with opened(bucket, monkeypatch) as store, writer.writing():
        wait_for(lambda: rows_copied_after(store, changed), "a copy of the rows", timeout=60)
        wait_for(lambda: copied_after(place, writer.done_at[5]), "a copy of the log", timeout=60)
        began = datetime.now(UTC)
        wait_for(lambda: copied_after(place, began), "a copy of later log", timeout=60)
        behind = (datetime.now(UTC) - began).total_seconds()
        wait_for(lambda: copied_at(place, never_started), "a copy of an idle branch", timeout=60)
        reported = copied_at(place)
        lost_at = lose(service)
    assert reported is not None
    wrong = ran(
        bucket,
        *("restore", "--from-store", "--state-dir", state_dir / "wrong"),
        status=1,
        PERCH_HISTORY_KEY="another",
    )
    assert "not the one that the history was encrypted with" in wrong
    assert not (state_dir / "wrong").exists()
    again, said = restored(bucket, state_dir)
    try:
        place.stack, place.client.api_url = again.stack, again.stack.api_url
        found = numbers(place)
        copied = [n for n, at in enumerate(writer.done_at, start=1) if at <= reported]
        assert set(copied) <= set(found)
        assert found == list(range(1, len(found) + 1))
        last = writer.done_at[len(found) - 1]
        print(f"behind {behind:.1f} s; lost {(lost_at - last).total_seconds():.1f} s: {said}")
        roles = {role["name"] for role in place.client.get(f"{place.branch_path()}/roles")["roles"]}
        assert "by_sql" in roles
        assert never_started in said
        place.create_endpoint(never_started)
        assert behind < 15
    finally:
        again.down()


def committed(place: Place, text: str) -> datetime:
    """Commit a row; returns when."""
    with place.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        connection.execute("INSERT INTO notes VALUES (%s)", [text])
    return datetime.now(UTC)


def notes(place: Place) -> list[str]:
    with place.connect() as connection:
        rows = connection.execute("SELECT text FROM notes ORDER BY ctid").fetchall()
    return [text for (text,) in rows]


@pytest.mark.thorough
def test_a_store_that_fails_is_never_believed_and_delays_nobody(
    state_dir: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyStore(bucket.endpoint).running() as faulty:
        behind = bucket.through(faulty.endpoint)
        place_of_service = state_dir / "service"
        place_of_service.mkdir(mode=0o711)
        service = Service(place_of_service, **behind.environment)
        try:
            place = Place.create(service.stack, service.client)
            first = committed(place, "first")
            wait_for(lambda: copied_after(place, first), "a copy", timeout=90)
            written = ["first"]
            for mode in MODES:
                faulty.turn(mode)
                at = committed(place, mode)
                written.append(mode)
                wait_for(lambda: len(faulty.asked) > 3, f"requests to a store that is {mode}")
                began = time.monotonic()
                place.suspend()
                place.start()
                assert time.monotonic() - began < 10 * load(), mode
                if mode != "slow":
                    assert not copied_after(place, at), mode
                    assert service.answers(), "a failing copy affects no client"
                faulty.turn("")
                wait_for(partial(copied_after, place, at), f"a copy after {mode}", timeout=150)
            changed = datetime.now(UTC)
            place.new_role("later")
            with opened(bucket, monkeypatch) as store:
                wait_for(lambda: rows_copied_after(store, changed), "the rows", timeout=90)
            lose(service)
        finally:
            service.down()
        again, said = restored(bucket, state_dir)
        try:
            place.stack, place.client.api_url = again.stack, again.stack.api_url
            assert notes(place) == written, said
            # The branch is on another timeline now, and in the new host's folder of the store.
            at = committed(place, "restored")
            wait_for(partial(copied_after, place, at), "a copy by the new host", timeout=90)
            said = ran(bucket, "history", "--state-dir", again.state_dir, "verify", place.branch_id)
            assert f"{place.branch_id}  can be restored until" in said
        finally:
            again.down()


@pytest.mark.thorough
def test_a_branch_is_restored_until_log_that_is_missing_in_the_store(
    service: Service, bucket: Bucket, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.create(service.stack, service.client)
    for text in ("first", "second", "third"):
        at = committed(place, text)
        wait_for(partial(copied_after, place, at), f"a copy of the {text}", timeout=90)
    changed = datetime.now(UTC)
    place.new_role("later")
    with opened(bucket, monkeypatch) as store:
        wait_for(lambda: rows_copied_after(store, changed), "the rows", timeout=90)
        lose(service)
        log = [n for n in store.names("regions") if f"{place.branch_id}/" in n and "/log/" in n]
        missing = next(n for n in log if b"third" in b"".join(store.get(n)))
        store.delete([missing])
    new = state_dir / "restored"
    said = ran(bucket, "restore", "--from-store", "--state-dir", new, status=2)
    start = int(missing.rsplit("/", 1)[-1].partition("-")[0], 16)
    assert (
        f"{place.branch_id} lacks data: the log from {start:X} on is missing in the store" in said
    )
    again = Service(new, **bucket.environment)
    try:
        place.stack, place.client.api_url = again.stack, again.stack.api_url
        assert notes(place) == ["first", "second"], said
    finally:
        again.down()


@pytest.mark.thorough
def test_what_is_in_the_store_is_listed_and_verified(
    service: Service, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.create(service.stack, service.client)
    at = committed(place, "first")
    wait_for(lambda: copied_after(place, at), "a copy of the log", timeout=90)
    here = ("--state-dir", service.state_dir)
    said = ran(bucket, "history", *here, "list")
    assert f"{place.id}  {place.branch_id}  from" in said
    assert "host" in said
    assert "Not in the store, and lost with their host: projects that keep no history" in said
    said = ran(bucket, "history", *here, "verify", place.branch_id)
    assert f"{place.branch_id}  can be restored until" in said
    assert not (service.state_dir / "branches" / "history-drill").exists()
    drill(service)
    said = ran(bucket, "history", *here, "verify", status=1, PERCH_HISTORY_KEY="another")
    assert "not the one that the history was encrypted with" in said
    with opened(bucket, monkeypatch) as store:
        piece = next(
            n for n in store.names("regions") if f"{place.branch_id}/" in n and "/log/" in n
        )
        cut_short(store, piece)
        said = ran(bucket, "history", *here, "verify", place.branch_id, status=1)
        assert f"{piece} is damaged: it is cut short" in said
        store.delete([piece])
        said = ran(bucket, "history", *here, "verify", place.branch_id, status=1)
        assert "is missing in the store" in said
    said = ran(bucket, "history", *here, "verify", "br-unknown", status=1)
    assert "br-unknown  cannot be restored" in said


def drill(service: Service) -> None:
    """Let the worker find that its last drill is long ago; returns after the next good one."""
    with service.stack.database() as connection:
        service.kill("worker")
        long_ago = '{"drilled_at": "2020-01-01T00:00:00+00:00"}'
        connection.execute("UPDATE controlplane_host SET history_store = %s", [long_ago])

        def has_drilled() -> bool:
            row = connection.execute(
                "SELECT (history_store->>'drilled_at')::timestamptz > now() - interval '1 day',"
                " history_store->>'drill_error' FROM controlplane_host"
            ).fetchone()
            assert row is not None
            assert not row[1], row
            return bool(row[0])

        wait_for(has_drilled, "a drill", timeout=90)


def cut_short(store: Store, name: str) -> None:
    """Replace an object by its first half."""
    content = bytes(obstore.get(store._objects, name).bytes())
    obstore.put(store._objects, name, content[: len(content) // 2])
