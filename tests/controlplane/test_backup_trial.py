"""`backup --verify` restores the rows and a sample of branches, and starts them."""

import json
from pathlib import Path

import pytest

from controlplane.backup.manifest import write_sums
from controlplane.backup.trial import TrialFailed, trial_directory
from tests.controlplane.test_backup import keep, service
from tests.support.commands import ran
from tests.support.place import Place
from tests.support.service import Service
from tests.support.stack import new_directory

__all__ = ["service"]

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_a_backup_is_verified_by_starting_it(service: Service, state_dir: Path) -> None:
    place = Place.create(service.stack, service.client)
    keep(place, 1)
    idle = place.new_branch_id(name="idle")
    backup, here = state_dir / "backup", ("--state-dir", service.state_dir)
    ran("backup", backup, *here)
    assert noted(service) == (True, False)
    said = ran("backup", backup, "--verify", *here)
    assert "The rows can be restored." in said
    for branch_id in (place.branch_id, idle):
        assert f"{branch_id}  starts, and its databases can be read" in said
    assert noted(service) == (True, True)
    assert not (state_dir / ".backup.trial").exists()
    assert place.is_served(), "the service itself is not disturbed"

    assert "starts, and" not in ran("backup", backup, "--verify", "--sample", "0", *here)
    spoil(backup, place.branch_id)
    said = ran("backup", backup, "--verify", *here, status=1)
    assert f"the branch {place.branch_id} does not start" in said
    assert f"{backup} cannot be restored" in said
    spoil(backup, place.branch_id)
    lack(backup, place.branch_id)
    said = ran("backup", backup, "--verify", *here, status=1)
    assert f"the branch {place.branch_id} lacks the database shop" in said
    assert not (state_dir / ".backup.trial").exists()


def test_a_backup_is_tried_out_by_one_process_at_a_time() -> None:
    """Both would use the same directory, which is removed at the end."""
    with new_directory() as place:
        backup = place / "backup"
        backup.mkdir()
        with trial_directory(backup, str(place)) as directory:
            directory.mkdir()
            with (
                pytest.raises(TrialFailed, match="another process verifies"),
                trial_directory(backup, str(place)),
            ):
                pass
            assert directory.exists()
        assert not directory.exists()


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(TrialFailed, match="--scratch"),
        trial_directory(tmp_path, str(tmp_path / "nowhere")),
    ):
        pass


def noted(service: Service) -> tuple[bool, bool]:
    """Whether a backup, and a verified one, is noted in the service's rows."""
    with service.stack.database() as database:
        row = database.execute(
            "SELECT backup_taken_at IS NOT NULL, backup_verified_at IS NOT NULL"
            " FROM controlplane_host"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def spoil(backup: Path, branch_id: str) -> None:
    """Damage the branch in a backup, or undo that. The sums stay right, as of a branch that was
    damaged when it was copied."""
    control = backup / "branches" / branch_id / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    content[40] ^= 1
    control.write_bytes(content)
    write_sums(backup)


def lack(backup: Path, branch_id: str) -> None:
    """Name a database in the manifest that the branch's data does not have."""
    path = backup / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["branches"][branch_id]["databases"]["0"] = "shop"
    path.write_text(json.dumps(manifest))
    write_sums(backup)
