"""What is removed of a history on disk once it is older than the project's window."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane import clock
from controlplane.history.keeping import _outdated_at
from controlplane.history.local.chain import UPGRADED, chains_in, hand_over
from controlplane.history.retention import prune
from controlplane.models.history import REPLACED
from tests.controlplane.history.test_log_copies import chain as chain

DAY = timedelta(days=1)


@pytest.mark.parametrize("reason", [REPLACED, UPGRADED])
def test_a_replaced_line_is_kept_for_the_whole_window_though_nothing_was_written_to_it(
    chain: Any, tmp_path: Path, reason: str
) -> None:
    """A restore of a branch that had slept for days can be undone."""
    chain.copied_at = clock.now() - 3 * DAY
    chain.write()
    replaced_at, fresh = clock.now(), tmp_path / "fresh"
    fresh.mkdir()
    hand_over(chain.place.parent.parent, fresh, replaced_at, reason)
    chains = chains_in(fresh / "history")
    assert _outdated_at(chains[0], chains[0].bases()) == replaced_at
    prune(chains, clock.now() - DAY)
    assert len(chains) == 1
    prune(chains, clock.now())
    assert not chains
