"""The files of locks are removed with what they were for."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.filesystem import (
    catalog_lock,
    history_lock,
    lock_branches,
    pooler_lock,
    standby_lock,
)


@pytest.mark.parametrize("name", ["br-gone", "ep-quiet-heron-123456", "lr-a"])
def test_no_file_of_what_is_not_there_stays(tmp_path: Path, settings: Any, name: str) -> None:
    settings.STATE_DIR = tmp_path
    (tmp_path / "branches" / "br-there").mkdir(parents=True)
    for kind in (catalog_lock, history_lock, pooler_lock, standby_lock):
        with lock_branches(kind("br-there")):
            pass
        with lock_branches(kind(name)):
            pass
        kept = [path.name for path in (tmp_path / "locks").iterdir()]
        assert all(one.endswith("-br-there") for one in kept)
    assert len(kept) == 4
