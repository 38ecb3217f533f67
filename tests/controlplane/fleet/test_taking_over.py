"""A lost host of a region with two: the other one restores its projects from the store."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.controlplane.deployment.test_metadata_copy import new_database
from tests.controlplane.history.test_history_store import copied_after, copied_at, numbers
from tests.support.bare_postgres import BarePostgres
from tests.support.numbers import Numbers
from tests.support.place import Place
from tests.support.second_host import placing_on
from tests.support.service import Service
from tests.support.stack import ROOT, free_port
from tests.support.waiting import wait_for

KEY = "the secret key of all hosts"
LOST = "second"

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@dataclass
class Region:
    """Two hosts of a region, which share a database and a store."""

    url: str
    place: Path
    first: Service
    second: Service

    def lose(self) -> datetime:
        """Kill all processes of the second host, and remove its state directory. Returns when."""
        self.second.kill_everything()
        at = datetime.now(UTC)
        shutil.copytree(
            self.second.state_dir,
            self.place / "saved",
            symlinks=True,
            ignore=shutil.ignore_patterns("sockets", "proxy", "log", "*pipe*"),
        )
        self.second.down()

        def is_gone() -> bool:
            shutil.rmtree(self.second.state_dir, ignore_errors=True)
            return not self.second.state_dir.exists()

        wait_for(is_gone, "the removal of the state directory")
        return at

    def declare_lost(self) -> str:
        """Declare it lost once it has been silent for long enough."""
        said = ""

        def is_lost() -> bool:
            nonlocal said
            done = self.hosts("lost", LOST, "--yes")
            said = done.stdout + done.stderr
            assert "still runs" in said or done.returncode == 0, said
            return done.returncode == 0

        wait_for(is_lost, "the host to be silent", timeout=60)
        return said

    def hosts(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.managed("hosts", *arguments)

    def managed(self, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `manage.py` on the first host."""
        known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
        return subprocess.run(
            [sys.executable, ROOT / "manage.py", *arguments],
            cwd=ROOT,
            env={
                **known,
                "DATABASE_URL": self.url,
                **environment(self.place, "local"),
                "PERCH_STATE_DIR": str(self.first.state_dir),
                **changes,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def moved(self, place: Place) -> Place:
        """The place, as the first host serves it."""
        place.stack, place.client.api_url = self.first.stack, self.first.stack.api_url
        return place


def environment(place: Path, name: str) -> dict[str, str]:
    """The variables of a host."""
    return {
        "PERCH_REGION": "local",
        "PERCH_HOST_NAME": name,
        "PERCH_HOST_ADDRESS": f"{name}.localhost",
        "PERCH_SECRET_KEY": KEY,
        "PERCH_HISTORY_STORE": f"file://{place}/store",
    }


@pytest.fixture
def region(bare_cluster: BarePostgres, state_dir: Path) -> Iterator[Region]:
    url = new_database(bare_cluster, "taken")
    running: list[Service] = []
    (state_dir / "store").mkdir()
    try:
        for name in ("local", LOST):
            place = state_dir / name
            place.mkdir(mode=0o711)
            running.append(Service(place, DATABASE_URL=url, **environment(state_dir, name)))
        yield Region(url, state_dir, *running)
    finally:
        for service in running:
            service.down()


def on_second(region: Region, **settings: Any) -> Place:
    """A project on the second host."""
    with placing_on(region.second.stack, LOST):
        return Place.create(region.second.stack, region.second.client, **settings)


def events(place: Place, kind: str) -> Any:
    return place.client.get(f"{place.path}/events", type=kind)["events"]


def test_another_host_serves_every_row_that_was_copied(region: Region) -> None:
    place, idle = on_second(region), on_second(region)
    with idle.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'idle' AS text")
    idle.suspend()
    stopped_at = datetime.now(UTC)
    writer = Numbers(place, ends_with_service=True)
    with writer.writing():
        wait_for(lambda: copied_after(place, writer.done_at[5]), "a copy of the log", timeout=90)
        wait_for(lambda: copied_at(idle) is not None, "a copy of the idle branch", timeout=90)
        later = datetime.now(UTC)
        wait_for(lambda: copied_after(place, later), "a copy of later log", timeout=60)
        refused = region.hosts("lost", LOST, "--yes")
        assert "still runs: the host is not lost. Nothing was changed" in refused.stderr
        reported = copied_at(place)
        lost_at = region.lose()
    assert reported is not None
    print(region.declare_lost())
    declared = datetime.now(UTC)
    region.moved(place)
    region.moved(idle)
    found = numbers(place)
    served = (datetime.now(UTC) - declared).total_seconds()
    copied = [n for n, at in enumerate(writer.done_at, start=1) if at <= reported]
    assert found == list(range(1, len(found) + 1))
    assert set(copied) <= set(found)
    assert idle.query("SELECT text FROM kept") == ("idle",)

    history = place.client.get(place.branch_path(None, "/history"))["history"]
    (event,) = events(place, "history.lost")
    last = datetime.fromisoformat(event["changes"]["last_commit_at"]["to"])
    until = datetime.fromisoformat(event["changes"]["restored_until"]["to"])
    known = writer.done_at[len(found) - 1]
    assert abs((known - last).total_seconds()) < 1
    really = (lost_at - known).total_seconds()
    assert until <= known + timedelta(seconds=1)
    assert history["lost_seconds"] == pytest.approx((lost_at - until).total_seconds(), abs=4)
    assert history["lost_seconds"] >= really
    of_idle = idle.client.get(idle.branch_path(None, "/history"))["history"]
    assert of_idle["lost_seconds"] == 0, (of_idle, stopped_at)
    (moved,) = events(place, "project.host_lost")
    assert moved["changes"]["host"] == {"from": LOST, "to": "local"}
    print(f"lost {really:.1f} s, said {history['lost_seconds']:.1f} s; served after {served:.1f} s")

    # The old host comes back with a copy of its state directory.
    for command in ("worker", "proxy"):
        done = region.managed(
            command,
            PERCH_STATE_DIR=str(region.place / "saved"),
            PERCH_HOST_NAME=LOST,
            PERCH_PROXY_PORT=str(free_port()),
        )
        assert done.returncode != 0
        assert "was declared lost" in done.stdout + done.stderr
    assert place.is_served()
    with region.first.stack.database() as database:
        query = "SELECT host_id FROM controlplane_project WHERE id = %s"
        assert database.execute(query, [place.id]).fetchone() == ("local",)


def test_a_worker_that_is_killed_while_it_restores_ends_whole(region: Region) -> None:
    place = on_second(region)
    writer = Numbers(place)
    with writer.writing():
        wait_for(lambda: len(writer.done_at) > 100, "some rows", timeout=60)
    written = datetime.now(UTC)
    wait_for(lambda: copied_after(place, written), "a copy of the log", timeout=90)
    region.lose()
    region.declare_lost()
    region.moved(place)
    restored = region.first.state_dir / "branches" / place.branch_id
    staging = restored.with_name(f".{place.branch_id}")
    scratch, kills = region.first.state_dir / f".from-store-{place.branch_id}", 0
    while kills < 3 and not restored.exists():
        wait_for(
            lambda: restored.exists() or staging.exists() or scratch.exists(),
            "a restore to begin",
            timeout=60,
        )
        wait_for(lambda: region.first.processes("worker"), "a worker")
        region.first.kill("worker")
        kills += 1
    assert kills
    assert numbers(place) == list(range(1, len(writer.done_at) + 1))
    assert len(events(place, "history.lost")) == 1
    assert not staging.exists()
    assert not scratch.exists()
    print(f"killed {kills} times")


def test_a_host_that_was_only_away_stops_its_computes(region: Region) -> None:
    """Its processes were paused, as on a machine that was cut off, and go on."""
    place = on_second(region)
    with place.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    written = datetime.now(UTC)
    wait_for(lambda: copied_after(place, written), "a copy of the log", timeout=90)
    paused = [*region.second.processes("worker"), *region.second.processes("proxy")]
    for process in paused:
        process.suspend()
    region.declare_lost()
    assert region.second.postmasters()
    for process in paused:
        process.resume()
    wait_for(lambda: not region.second.postmasters(), "its computes to be stopped", timeout=60)
    with pytest.raises(psycopg.OperationalError):
        place.connect(connect_timeout=5).close()
    region.moved(place)
    assert place.query("SELECT number FROM kept") == (1,)
