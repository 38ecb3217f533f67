"""Inodes run out like bytes: what the reserve of them does."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.compute.host import space
from controlplane.compute.host.tree import (
    MIN_FILE_BYTES,
    count_files,
    size_on_disk,
    sizes_on_disk,
    tree_size,
)


def has_inodes(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    found = SimpleNamespace(
        f_blocks=1 << 30, f_frsize=4096, f_bavail=1 << 29, f_files=total, f_favail=free
    )
    monkeypatch.setattr(os, "statvfs", lambda _: found)


@pytest.mark.parametrize(
    ("total", "free", "is_short"),
    [
        (1_000_000, 100_000, False),
        (1_000_000, 99_999, True),
        # A twentieth of many.
        (10_000_000, 500_000, False),
        (10_000_000, 499_999, True),
        # A quarter of few.
        (100_000, 25_000, False),
        (100_000, 24_999, True),
        # Btrfs has no fixed number.
        (0, 0, False),
    ],
)
def test_inodes_have_a_reserve(
    monkeypatch: pytest.MonkeyPatch, total: int, free: int, is_short: bool
) -> None:
    has_inodes(monkeypatch, total, free)
    found = space.space_at(Path("/"))
    assert found.is_short is (found.left == 0) is is_short


def test_without_inodes_nothing_new_is_made_and_the_problem_says_why(
    monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    has_inodes(monkeypatch, 1_000_000, 7)
    words = "7 inodes free, less than the reserve of 100000"
    assert space.disk_problem() == f"the disk is nearly full: {words}"
    with pytest.raises(space.NotEnoughSpace, match=words):
        space.require(1, at=Path("/"), what="the branch")


def test_the_filesystem_that_lacks_inodes_is_the_scarcest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: SimpleNamespace
) -> None:
    settings.STATE_DIR = tmp_path
    (tmp_path / "branches").mkdir()
    many, few = (space.Space(100, free, 10, files, 5) for free, files in ((50, 50), (90, 1)))
    monkeypatch.setattr(space, "space_at", lambda at: few if at.name == "branches" else many)
    assert space.host_space() is few


def test_a_file_or_directory_counts_a_block_at_least(tmp_path: Path) -> None:
    (tmp_path / "base" / "1").mkdir(parents=True)
    for name, size in (("empty", 0), ("small", 100), ("large", 3 * MIN_FILE_BYTES)):
        for folder in (tmp_path, tmp_path / "base" / "1"):
            (folder / name).write_bytes(bytes(size))
    assert tree_size(tmp_path) == 2 * (100 + 3 * MIN_FILE_BYTES)
    directories = 3 * MIN_FILE_BYTES
    assert size_on_disk(tmp_path) == directories + 2 * 5 * MIN_FILE_BYTES
    # The bytes of the database's files are known.
    beside, measured, count = sizes_on_disk(tmp_path, measured=["base/1"])
    assert count == count_files(tmp_path) == 3 + 2 * 3
    assert beside == directories + 5 * MIN_FILE_BYTES + MIN_FILE_BYTES + MIN_FILE_BYTES - 100
    assert measured == {"base/1": 100 + 3 * MIN_FILE_BYTES}
