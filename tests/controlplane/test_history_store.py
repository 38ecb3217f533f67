"""The copy of the history in an object store, and the restore of a lost host from it."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.history_store.objects import Store
from tests.support.object_store import Bucket, bucket, environment_with, opened, s3
from tests.support.place import Place
from tests.support.service import Service
from tests.support.stack import ROOT
from tests.support.waiting import wait_for

__all__ = ["bucket", "s3"]

pytestmark = pytest.mark.slow


def ran(bucket: Bucket, *arguments: str | Path, status: int = 0, **changes: str) -> str:
    """Run a command of `manage.py` with the store's settings; returns what it printed."""
    environment = environment_with(bucket, **changes)
    done = subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if "DJANGO" not in name},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    assert "Traceback" not in output, output
    return output


class Writer(threading.Thread):
    """Commits the numbers from 1 on, and records the time of each commit."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.done_at: list[datetime] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        with self.place.connect() as connection:
            connection.execute("CREATE TABLE numbers (number int)")
            while not self.stopped.wait(0.05):
                number = len(self.done_at) + 1
                try:
                    connection.execute("INSERT INTO numbers VALUES (%s)", [number])
                except psycopg.Error:
                    return
                self.done_at.append(datetime.now(UTC))

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.start()
        wait_for(lambda: len(self.done_at) > 10, "some rows")
        try:
            yield
        finally:
            self.stopped.set()
            self.join(30)


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


def test_a_lost_host_is_restored_with_every_row_that_was_copied(
    service: Service, bucket: Bucket, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.create(service.stack, service.client)
    never_started = place.new_branch_id(name="never started")
    with place.connect() as connection:
        connection.execute("CREATE ROLE by_sql LOGIN PASSWORD 'secret by sql'")
    changed = datetime.now(UTC)
    writer = Writer(place)
    with opened(bucket, monkeypatch) as store, writer.writing():
        wait_for(lambda: rows_copied_after(store, changed), "a copy of the rows", timeout=60)
        wait_for(lambda: copied_after(place, writer.done_at[5]), "a copy of the log", timeout=60)
        began = datetime.now(UTC)
        wait_for(lambda: copied_after(place, began), "a copy of later log", timeout=60)
        behind = (datetime.now(UTC) - began).total_seconds()
        wait_for(
            lambda: any(f"{never_started}/data/" in name for name in store.names("regions")),
            "a copy of the branch without history",
            timeout=60,
        )
        reported = copied_at(place)
        lost_at = lose(service)
    assert reported is not None
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
