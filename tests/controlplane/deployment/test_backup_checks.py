"""What is checked of a backup: its manifest before it is restored, and with `backup --verify` the
rows and a sample of branches, which are restored and started."""

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.backup import branch_copy, manifest, taking
from controlplane.backup.manifest import (
    MANIFEST,
    SUMS,
    BranchCopy,
    Manifest,
    NoBackup,
    read_manifest,
    verify,
    write_manifest,
    write_sums,
)
from controlplane.backup.restoring import RestoreRefused, check_key
from controlplane.backup.taking import require_room
from controlplane.backup.trial import TrialFailed, trial_directory
from controlplane.compute.data.branch_data import data_dir
from controlplane.environment import Unstored
from controlplane.models import Account, Host
from tests.controlplane.deployment.test_backup import keep, service
from tests.controlplane.rows import make_project
from tests.support.commands import ran
from tests.support.place import Place
from tests.support.service import Service
from tests.support.stack import new_directory

BRANCH = "br-quiet-heron-123456"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    place = tmp_path / "backup"
    place.mkdir()
    copy = BranchCopy(timezone.now(), was_running=False, size=7, databases={"1": "db"}, roles=["a"])
    made = Manifest(
        perch="0.1.0",
        postgres="18",
        region="local",
        began_at=timezone.now(),
        rows_at=timezone.now(),
        migrations=["controlplane.0001_squashed_0029"],
        branches={BRANCH: copy},
    )
    write_manifest(place, made)
    write_sums(place)
    assert read_manifest(place) == made
    assert verify(place) == []
    return place


def test_a_restore_with_another_secret_key_is_refused(backup: Path, settings: Any) -> None:
    (backup / "secret-key").write_text("the backup's\n")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", []
    with pytest.raises(RestoreRefused, match="not that of the backup"):
        check_key(backup)
    settings.SECRET_KEY_FALLBACKS = ["the backup's"]
    check_key(backup)
    settings.SECRET_KEY = Unstored("random")
    settings.SECRET_KEY_FALLBACKS = []
    check_key(backup)


def test_links_and_pipes_are_no_files_of_a_backup(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("elsewhere")
    (backup / "api-key").symlink_to(tmp_path / "key")
    (backup / "tls").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(backup / "pipe")
    with (backup / SUMS).open("a") as sums:
        for name in ("api-key", "tls", "pipe"):
            sums.write(f"{hashlib.sha256(b'elsewhere').hexdigest()}  {name}\n")
    changed = [f"{name} has changed since it was written" for name in ("api-key", "pipe", "tls")]
    assert verify(backup) == changed


def without(stored: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in stored.items() if key != name}


def with_branch(stored: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**stored, "branches": {BRANCH: {**stored["branches"][BRANCH], **changes}}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda stored: "not JSON", "all of it has the wrong type"),
        (lambda stored: None, "all of it has the wrong type"),
        (lambda stored: [stored], "all of it has the wrong type"),
        (lambda stored: without(stored, "format"), "format is missing"),
        (lambda stored: without(stored, "rows_at"), "rows_at is missing"),
        (lambda stored: {**stored, "rows_at": "yesterday"}, "rows_at has the wrong type"),
        (lambda stored: {**stored, "rows_at": None}, "rows_at has the wrong type"),
        (lambda stored: {**stored, "migrations": 7}, "migrations has the wrong type"),
        (lambda stored: {**stored, "branches": []}, "branches has the wrong type"),
        (lambda stored: {**stored, "branches": {"../up": {}}}, "branches.../up has the wrong type"),
        (
            lambda stored: with_branch(stored, size="much"),
            f"branches.{BRANCH}.size has the wrong type",
        ),
        (
            lambda stored: with_branch(stored, roles={"a": 1}),
            f"branches.{BRANCH}.roles has the wrong type",
        ),
    ],
)
def test_a_modified_manifest_is_refused_with_the_reason(
    backup: Path, change: Callable[[Any], Any], complaint: str
) -> None:
    path = backup / MANIFEST
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(NoBackup, match=re.escape(complaint)) as refused:
        read_manifest(backup)
    assert "has changed since `backup` wrote it" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"{", "it is not JSON"), (b"\xff", "it is not text")]
)
def test_a_manifest_that_cannot_be_read_is_refused(
    backup: Path, content: bytes, complaint: str
) -> None:
    (backup / MANIFEST).write_bytes(content)
    with pytest.raises(NoBackup, match=complaint):
        read_manifest(backup)


def test_a_manifest_of_another_format_is_recognized(backup: Path) -> None:
    (backup / MANIFEST).write_text('{"format": 2, "perch": "9.0", "other": 1}')
    with pytest.raises(NoBackup, match=r"made by another version of Perch, 9\.0"):
        read_manifest(backup)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_refused_restore_leaves_nothing_behind(backup: Path, tmp_path: Path) -> None:
    stored = json.loads((backup / MANIFEST).read_text())
    (backup / MANIFEST).write_text(json.dumps(without(stored, "region")))
    said = ran("restore", backup, "--state-dir", tmp_path / "new", status=1)
    assert "(region is missing)" in said
    assert not (tmp_path / "new").exists()


__all__ = ["service"]


@pytest.mark.thorough
@pytest.mark.slow
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


@pytest.mark.parametrize(
    "line", ["data/base/x", "0" * 64 + "  /etc/passwd", "0" * 64 + "  a/../../b", "unreadable: x"]
)
def test_sums_that_no_backup_has_are_refused(backup: Path, line: str) -> None:
    with (backup / SUMS).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(NoBackup, match="has a line that `backup` does not write"):
        verify(backup)


def test_an_error_ends_the_reading_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def digest_of(path: Path) -> str:
        read.append(path)
        time.sleep(0.02)  # as long as a small file takes
        raise OSError(path)

    for number in range(100):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(manifest, "_digest_of", digest_of)
    with pytest.raises(OSError, match="0"):
        manifest.write_sums(tmp_path)
    assert len(read) < 100


def test_sums_of_earlier_releases_may_have_any_name(backup: Path) -> None:
    (backup / "branches").mkdir()
    (backup / "branches" / "a name..  of any kind").touch()
    write_sums(backup)
    assert verify(backup) == []


@pytest.mark.django_db
def test_a_branch_with_files_that_postgres_never_makes_does_not_stop_the_others(
    account: Account, host: Host, tmp_path: Path, settings: Any
) -> None:
    settings.STATE_DIR = tmp_path / "state"
    (tmp_path / "state" / "locks").mkdir(parents=True)
    staging = tmp_path / "backup"
    staging.mkdir()
    hostile, other = (make_project(account, host).branches.get().id for _ in range(2))
    for branch_id in (hostile, other):
        place = data_dir(branch_id) / "global"
        place.mkdir(parents=True)
        (place / "pg_control").write_text("18\n")
        (place / "x\ny").write_text("18\n")
        (place / os.fsdecode(b"\xff\xfe")).write_text("18\n")
    (data_dir(hostile) / "sparse").touch()
    os.truncate(data_dir(hostile) / "sparse", 15 << 40)
    copies: dict[str, BranchCopy] = {}
    failed: dict[str, str] = {}
    require_room(map(data_dir, (hostile, other)), at=Path("/dev/shm"))
    taking._copy_branches(staging, copies, failed, print)
    assert failed == {hostile: "its files claim far more bytes than they hold"}
    assert list(copies) == [other]
    (staging / MANIFEST).write_text(json.dumps({}))
    write_sums(staging)
    assert "x\n" not in (staging / SUMS).read_text()
    assert [path.name for path in (staging / "branches").rglob("*")] == [
        *(other, "global", "pg_control"),
    ]


@pytest.mark.django_db
def test_a_compute_that_delays_its_copy_delays_no_other(
    account: Account, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may hold a lock on the catalogs, so that each attempt waits for a minute."""
    slow, busy, other = (make_project(account, host).branches.get().id for _ in range(3))
    tried: list[tuple[str, bool]] = []

    def attempt(branch_id: str, target: Path, *, gives_way: bool) -> BranchCopy:
        tried.append((branch_id, gives_way))
        if branch_id == slow or (branch_id == busy and len(tried) == 2):
            raise TimeoutError("the catalogs are locked")
        return BranchCopy(timezone.now(), was_running=True, size=7, databases={}, roles=[])

    monkeypatch.setattr(branch_copy, "_attempt", attempt)
    monkeypatch.setattr(branch_copy, "sleep", lambda seconds: None)
    copies: dict[str, BranchCopy] = {}
    failed: dict[str, str] = {}
    taking._copy_branches(tmp_path, copies, failed, print)
    first = [(slow, True), (busy, True), (other, True)]
    assert tried == [*first, (slow, True), (busy, True), *[(slow, True)] * 2, (slow, False)]
    assert [*copies, failed] == [other, busy, {slow: "the catalogs are locked"}]


@pytest.mark.django_db
def test_a_full_target_ends_the_backup(
    account: Account, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project(account, host)

    def attempt(branch_id: str, target: Path, *, gives_way: bool) -> BranchCopy:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(branch_copy, "_attempt", attempt)
    with pytest.raises(OSError, match="no space left"):
        taking._copy_branches(tmp_path, {}, {}, print)
