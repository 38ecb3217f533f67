"""Who may own a state directory, and who may lock its files and branches."""

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.data.branch_data import new_branch
from controlplane.compute.data.state_directory import (
    StateDirectoryUnusable,
    hold_state_directory,
    prepare_state_directory,
    sole_holder,
)
from controlplane.compute.host import account_numbers
from controlplane.compute.host.filesystem import LockTimeout, catalog_lock, lock_branches
from tests.support.ordinary_user import as_ordinary_user, base_python
from tests.support.stack import new_directory

LOCKS_IT = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(settings: Any) -> Iterator[Path]:
    """A state directory that other accounts may pass through, such as root's."""
    with new_directory() as directory:
        settings.STATE_DIR, settings.SOCKET_DIR = directory, directory / "sockets"
        prepare_state_directory()
        directory.chmod(0o711)
        yield directory


@contextmanager
def locked(path: Path, python: str = sys.executable, **account: Any) -> Iterator[None]:
    """Another process holds a lock on the file."""
    process = subprocess.Popen(
        [python, "-c", LOCKS_IT, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **account,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        process.stdin.close()


def test_no_other_account_can_read_any_file_that_is_locked(place: Path) -> None:
    """Whoever can read a file can lock it."""
    earlier = [place / "up.lock", place / "worker.lock"]
    for path in earlier:
        path.touch(mode=0o644)
    with hold_state_directory(), sole_holder("worker") as alone:
        assert alone
        for path in earlier:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((place / "locks").stat().st_mode) == 0o700
        for path in (place / "locks").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_other_account_can_lock_the_list_of_account_numbers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = place / "run" / "accounts"
    monkeypatch.setattr(account_numbers, "CLAIMS", claims)
    for existing in (False, True):
        if existing:
            claims.chmod(0o755)
        account_numbers.is_owned_by(place / "branches", 50_000)
        assert stat.S_IMODE(claims.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["up", "worker"])
def test_one_process_holds_it_and_another_after_it(place: Path, name: str) -> None:
    with sole_holder(name) as first, sole_holder(name) as second:
        assert (first, second) == (True, False)
    with locked(place / "locks" / name), sole_holder(name) as third:
        assert not third
    with sole_holder(name) as alone:
        assert alone


def test_a_lock_by_an_earlier_release_on_its_own_file_is_respected(place: Path) -> None:
    (place / "up.lock").touch(mode=0o644)
    with (
        locked(place / "up.lock"),
        pytest.raises(StateDirectoryUnusable, match="already running"),
        hold_state_directory(),
    ):
        pass
    # Such a release does not start beside this one either.
    with hold_state_directory(), (place / "up.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account at hand")
def test_another_accounts_lock_on_the_earlier_file_prevents_no_start(place: Path) -> None:
    python = base_python()
    assert python is not None
    (place / "up.lock").touch(mode=0o644)
    with locked(place / "up.lock", python, **as_ordinary_user()), hold_state_directory():
        assert not (place / "up.lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away a directory")
def test_a_directory_that_release_0_1_made_as_root_is_refused_with_instructions(
    place: Path,
) -> None:
    os.chown(place / "branches", 65534, 65534)
    with pytest.raises(StateDirectoryUnusable, match="belongs to the account 65534") as refused:
        prepare_state_directory()
    for step in (f"chown -R USER: {place}", "`backup`", "`restore`", "docs/how-to/upgrade.md"):
        assert step in str(refused.value)


BRANCH = "br-quiet-heron-123456"


@pytest.mark.parametrize("name", [BRANCH, catalog_lock(BRANCH)])
def test_the_lock_of_a_removed_branch_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another process may acquire the lock just after the branch was removed."""
    monkeypatch.setattr(settings, "STATE_DIR", tmp_path)
    place, lock = tmp_path / "branches" / BRANCH, tmp_path / "locks" / name
    place.mkdir(parents=True)
    with lock_branches(name):
        pass
    assert lock.exists()
    place.rmdir()
    with lock_branches(name, "accounts"):
        with pytest.raises(LockTimeout), lock_branches(name, timeout=0):
            pass
        assert lock.exists()
    assert not lock.exists()
    assert (tmp_path / "locks" / "accounts").exists()
    first = lock_branches(name)
    first.__enter__()
    lock.unlink()
    with lock_branches(name):
        first.__exit__(None, None, None)
        assert lock.exists(), "the file of the second holder"


def test_a_branch_that_is_made_anew_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "STATE_DIR", tmp_path)
    monkeypatch.setattr(settings, "SOCKET_DIR", tmp_path / "sockets")
    (tmp_path / "branches").mkdir()
    with lock_branches(BRANCH):
        with new_branch(BRANCH) as (staging, _):
            (staging / "data").mkdir()
        assert (tmp_path / "branches" / BRANCH).exists()
        compute.clear(BRANCH)
        assert not (tmp_path / "branches" / BRANCH).exists()
        with pytest.raises(LockTimeout), lock_branches(BRANCH, timeout=0):
            pass
