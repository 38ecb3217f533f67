"""A backup with a modified manifest is refused with the reason, and a refused restore leaves
nothing behind."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.backup.manifest import (
    MANIFEST,
    BranchCopy,
    Manifest,
    NoBackup,
    read_manifest,
    verify,
    write_manifest,
    write_sums,
)
from controlplane.backup.restoring import RestoreRefused, check_key
from controlplane.environment import Unstored
from tests.support.commands import ran

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
