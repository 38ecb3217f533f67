"""What pg_upgrade said is shown without the paths of this host."""

import io
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import pg_upgrade
from controlplane.compute.pg_upgrade import LONGEST_REPORT, LONGEST_WORDS
from controlplane.operations.words import without_paths


@pytest.mark.parametrize("kept", range(1, 60, 10))
def test_a_path_that_is_cut_off_is_not_shown(tmp_path: Path, settings: Any, kept: int) -> None:
    path = f"{settings.STATE_DIR}/branches/.br-grey-fox-12345678/data"
    place = tmp_path / "pg_upgrade_output.d"
    place.mkdir()

    def ending(limit: int) -> bytes:
        """Text of which the last `limit` bytes begin within the path."""
        return f'a cluster "{path[:-kept]}'.encode() + b"x" * kept + b" " + b"w" * (limit - 61)

    (place / "loadable_libraries.txt").write_bytes(ending(LONGEST_REPORT))
    said = pg_upgrade._words(io.BytesIO(ending(LONGEST_WORDS)), tmp_path)
    assert "www" in said
    assert not any(part in without_paths(said) for part in ("/", "br-grey", "branches"))
