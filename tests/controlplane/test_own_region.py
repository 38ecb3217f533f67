"""A region is served from one state directory. Processes of a second one refuse to start."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.models import Region
from controlplane.operations.own_region import RegionTaken, adopt_region, own_region
from controlplane.operations.upkeep import publish
from tests.support.stack import ROOT, Stack, free_port


def test_the_first_state_directory_owns_the_region(db: None, tmp_path: Path, settings: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    settings.STATE_DIR = first
    region = own_region()
    assert own_region() == region
    settings.STATE_DIR = second
    with pytest.raises(RegionTaken, match="regions adopt"):
        own_region()
    adopt_region(region)
    assert own_region().state_id == (second / "identity").read_text().strip()


def test_a_region_without_an_owner(db: None, tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path
    Region.objects.create(id=settings.REGION, name="local", host="localhost")
    assert own_region().state_id == (tmp_path / "identity").read_text().strip()


def test_a_directory_keeps_its_identity_when_it_is_moved(
    db: None, tmp_path: Path, settings: Any
) -> None:
    settings.STATE_DIR = tmp_path / "before"
    settings.STATE_DIR.mkdir()
    region = own_region()
    settings.STATE_DIR = settings.STATE_DIR.rename(tmp_path / "after")
    assert own_region() == region


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["worker", "proxy"])
def test_no_process_serves_a_region_of_another_state_directory(
    stack: Stack, tmp_path: Path, command: str
) -> None:
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents:
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": f"host={stack.state_dir}/sockets/metadata user=perch dbname=perch",
            "PERCH_STATE_DIR": str(tmp_path),
            "PERCH_PROXY_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is served from another state directory" in done.stderr
    assert "manage.py regions adopt local" in done.stderr
    assert stack.answers()


def test_a_changed_host_and_port_are_published(db: None, tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path
    region = own_region()
    settings.REGION_HOST, settings.PROXY_PORT = "db.example.com", 6543
    publish(region)
    region.refresh_from_db()
    assert (region.host, region.port) == ("db.example.com", 6543)
