"""A short run of `python -m tests.torture`, which otherwise runs for as long as requested."""

from pathlib import Path

import pytest

from tests.torture.ground import Ground
from tests.torture.run import summary, torture
from tests.torture.world import Size

SEED = 7
SECONDS = 15.0
SIZE = Size(
    accounts=2,
    projects=1,
    branches=3,
    users=1,
    writers=3,
    readers=1,
    blows=(0.3, 2.0),
    blows_per_restart=12,
)


@pytest.mark.thorough
def test_random_kills_and_stops_leave_everything_consistent(
    state_dir: Path, tmp_path: Path
) -> None:
    journal = torture(SEED, SECONDS, SIZE, Ground(state_dir), directory=tmp_path)
    assert not journal.breaks, f"see {tmp_path}\n{summary(journal)}"
    for kind in ("rows", "reads", "blows", "branches read"):
        assert journal.total(kind) > 0, f"no {kind}: {summary(journal)}"
