"""The locks of branches, which are files."""

from pathlib import Path

import pytest
from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.branch_data import new_branch
from controlplane.compute.filesystem import LockTimeout, catalog_lock, lock_branches

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
