"""`.ci/build`: a commit's archives have the same bytes wherever they are built."""

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.installation import BUILT_AT, build, fresh_clone
from tests.support.stack import ROOT


def version() -> str:
    line = next(
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "version = " in line
    )
    return line.split('"')[1]


def digests(folder: Path) -> dict[str, str]:
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.thorough
def test_another_clone_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    # Of another time, with other permissions, and in a longer path than the fixture's.
    clone = fresh_clone(tmp_path / "another" / "checkout")
    for path in clone.rglob("*"):
        path.chmod(0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    for built in (tmp_path / "first", tmp_path / "again"):
        done = build(clone, built)
        assert done.returncode == 0, done.stderr
        assert digests(built) == digests(wheel.parent)


def test_the_archives_name_no_builder_and_no_time_of_the_build(wheel: Path) -> None:
    (sources,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        members = archive.getmembers()
    assert {one.mtime for one in members} == {int(BUILT_AT)}
    assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}
    assert {one.mode for one in members} <= {0o644, 0o755}
    with zipfile.ZipFile(wheel) as zipped:
        assert {one.date_time for one in zipped.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_a_tag_that_is_not_this_version_is_refused(tmp_path: Path) -> None:
    clone = fresh_clone(tmp_path / "checkout")
    refused = build(clone, tmp_path / "built", "v0.0.1")
    assert refused.returncode == 1
    assert refused.stderr == f"the tag is v0.0.1, but pyproject.toml has {version()}\n"
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    refused = build(clone, tmp_path / "built", f"v{version()}")
    assert refused.returncode == 1
    assert refused.stderr == f"CHANGELOG.md has no section {version()}\n"
    assert not (tmp_path / "built").exists()


def test_what_an_earlier_build_has_left_is_not_built_into_another(tmp_path: Path) -> None:
    clone = fresh_clone(tmp_path / "checkout")
    (clone / "build").mkdir()
    refused = build(clone, tmp_path / "built")
    assert refused.returncode == 1
    assert "use a fresh clone" in refused.stderr
