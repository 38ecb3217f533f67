"""Files that a compute's account makes, and Postgres never does: with names that no list can hold,
and with far more bytes than the disk has. They are left out, or refused for their branch alone."""

import os
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.tree import (
    NAME,
    TreeUntrusted,
    entries_in,
    entries_of,
    files_in,
    open_directory,
    size_on_disk,
    sizes_on_disk,
    tree_size,
)
from controlplane.history.store.packing import tree_stream
from controlplane.operations.actions.words import failure_message
from tests.support.own_compute import own_branch

ODD_NAMES = (b"x\ny", b"\xff\xfe", b"two words", "é".encode(), b'"', b"\\")
BRANCH = "br-odd-heron-123456"
MIB, TIB = 1 << 20, 1 << 40
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A data directory of another account."""
    place = tmp_path / "data"
    (place / "base" / "5").mkdir(parents=True)
    (place / "base" / "5" / "1259").write_bytes(os.urandom(8192))
    return place


def given(tree: Path) -> Path:
    for path in (tree, *tree.rglob("*")):
        if os.geteuid() == 0:
            os.lchown(path, 50_001, 50_001)
    return tree


def sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def reserve(size: int, path: Path) -> None:
    subprocess.run(["fallocate", "--keep-size", "--length", str(size), path], check=True)


def packed(tree: Path) -> int:
    with open_directory(tree) as directory:
        return sum(map(len, tree_stream(directory)))


def listed(tree: Path) -> set[str]:
    return {name for name, _ in entries_in(tree)}


def test_names_that_postgres_never_gives_are_left_out(tree: Path, tmp_path: Path) -> None:
    before = listed(tree), tree_size(tree), packed(tree)
    for name in ODD_NAMES:
        place = os.fsencode(tree / "base") + b"/" + name
        Path(os.fsdecode(place)).write_bytes(b"1")
        os.mkdir(place + b"d")
        Path(os.fsdecode(place + b"d/1259")).write_bytes(b"1")
    assert (listed(tree), tree_size(tree), packed(tree)) == before
    assert len(list(files_in(tree))) == 1
    clone_tree(tree, tmp_path / "copy", owner=own_account())
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
    assert found == before[0] == {"base", "base/5", "base/5/1259"}


def test_the_disk_is_taken_by_files_of_any_name(tree: Path) -> None:
    before = size_on_disk(tree)
    for number, name in enumerate(ODD_NAMES, start=1):
        Path(os.fsdecode(os.fsencode(tree) + b"/" + name)).write_bytes(os.urandom(MIB))
        assert size_on_disk(tree) == before + number * MIB


def test_every_name_of_a_real_data_directory_is_kept() -> None:
    with lock_branches(BRANCH), own_branch(BRANCH):
        data = data_dir(BRANCH)
        real = {str(path.relative_to(data)) for path in data.rglob("*")}
        assert len(real) > 900
        assert listed(data) == real
    for name in (
        *("16384_fsm", "000000010000000000000001.partial", "00000002.history", "t3_16385.1"),
        *("pgsql_tmp123.0.fileset", "o5of8.p0.0", "backup_label.old", "pg_stat_statements.stat"),
        *("map-4000-4eb-1_80000000-3bb-3b9", "0-16A4408.snap", "xid-730-lsn-0-16A4408.spill"),
        *("00000003-0000001B-1", "PG_18_202506291", "pg_internal.init.4711", ".s.PGSQL.5432.lock"),
    ):
        assert NAME.fullmatch(name), name


def test_a_file_takes_what_it_holds_and_copies_keep_its_holes(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.compute.host.cloning._clone_blocks", lambda *files: False)
    before, on_disk = tree_size(tree), size_on_disk(tree)
    with (tree / "holes").open("wb") as file:
        for at in (64 * MIB, 0, 512 * MIB):
            file.seek(at)
            file.write(os.urandom(MIB))
        file.truncate(1024 * MIB)
    assert before + 3 * MIB <= tree_size(tree) < before + 4 * MIB
    assert on_disk + 3 * MIB <= size_on_disk(tree) < on_disk + 4 * MIB
    clone_tree(tree, tmp_path / "copy", owner=own_account())
    assert (tmp_path / "copy" / "holes").stat().st_size == 1024 * MIB
    assert tree_size(tmp_path / "copy") == tree_size(tree)
    for part in (0, 64, 65, 512, 1023):
        parts = []
        for place in (tree, tmp_path / "copy"):
            with (place / "holes").open("rb") as file:
                file.seek(part * MIB)
                parts.append(file.read(MIB))
        assert parts[0] == parts[1]


@as_root
@pytest.mark.parametrize(
    "walk",
    [
        tree_size,
        packed,
        listed,
        lambda tree: deque(files_in(tree)),
        lambda tree: clone_tree(tree, tree.with_name("copy"), owner=own_account()),
    ],
)
def test_a_tree_that_claims_far_more_than_it_holds_is_refused(
    tree: Path, walk: Callable[[Path], object]
) -> None:
    sparse(tree / "sparse", 15 * TIB)
    with pytest.raises(TreeUntrusted, match="claim far more bytes than they hold") as refused:
        walk(given(tree))
    assert "remove the files" in failure_message(refused.value)
    # What it takes is known all the same.
    assert size_on_disk(tree) < MIB


@as_root
def test_holes_that_a_database_may_have_are_not_refused(tree: Path) -> None:
    for number in range(16):
        sparse(tree / "base" / "5" / f"16384.{number}", 1023 * MIB)
    assert tree_size(given(tree)) == 8192


def test_what_was_copied_before_such_trees_were_refused_ends(tree: Path) -> None:
    """Trees of our own may claim more, since disks that compress differ, but not without end."""
    (tree / "base" / "sparse").write_bytes(os.urandom(8 * MIB))
    os.truncate(tree / "base" / "sparse", 30 << 30)
    assert tree_size(tree) == 8 * MIB + 8192
    sparse(tree / "base" / "sparse", 15 * TIB)
    with pytest.raises(TreeUntrusted):
        packed(tree)


def test_bytes_beyond_the_end_of_a_file_are_seen(tree: Path) -> None:
    """Postgres measures its databases by the sizes of their files."""
    before, *_ = sizes_on_disk(tree, measured=["base/5"])
    path = tree / "base" / "5" / "1259"
    for size, more in ((64 << 10, 0), (32 * MIB, 32 * MIB - 8192)):
        reserve(size, path)
        assert sizes_on_disk(tree, measured=["base/5"])[0] == before + more
    assert tree_size(tree) == 8192


@pytest.mark.parametrize("content", [b"", b"1"])
def test_bytes_that_many_files_reserve_are_seen(tree: Path, content: bytes) -> None:
    """A disk reserves little for files that do not grow."""
    before, count = size_on_disk(tree), 200
    for number in range(count):
        (tree / str(number)).write_bytes(content)
        reserve(MIB, tree / str(number))
    assert size_on_disk(tree) - before >= (count - 65) * MIB
    assert content or size_on_disk(tree) - before >= count * MIB


def test_a_directory_that_held_many_names_takes_its_blocks(tree: Path) -> None:
    before = size_on_disk(tree)
    for number in range(4000):
        (tree / "base" / f"{number:0200}").touch()
    for path in (tree / "base").glob("0*"):
        path.unlink()
    assert size_on_disk(tree) - before >= (tree / "base").stat().st_blocks * 512 - 4096


def test_what_vanishes_is_missing_only_where_all_is_wanted(tree: Path) -> None:
    (tree / "base" / "5" / "1260").write_bytes(b"1")
    (tree / "base" / "5" / "1261").write_bytes(b"1")
    for all_of in (False, True):
        with open_directory(tree / "base" / "5") as directory:
            entries = entries_of(directory, all_of=all_of)
            next(entries)
            for path in (tree / "base" / "5").iterdir():
                path.unlink()
            if all_of:
                with pytest.raises(FileNotFoundError):
                    deque(entries)
            else:
                assert not list(entries)
        for name in ("1260", "1261"):
            (tree / "base" / "5" / name).write_bytes(b"1")
