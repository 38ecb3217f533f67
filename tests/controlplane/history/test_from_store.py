"""What is said to be lost of a branch that was restored from the store, as its host was lost."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from controlplane.history.from_store import FromStore, _lost
from controlplane.history.store import fetching, lost_branches
from controlplane.history.store.fetching import NothingStored
from controlplane.history.store.layout import BranchList, StoredChain, StoredData
from controlplane.history.store.objects import Store
from controlplane.models import Branch, Project
from controlplane.operations.details import RestoreFromStoreDetails
from tests.controlplane.history.test_history_copies import base, chain, store

__all__ = ["store"]

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def lost(found: FromStore, **details: object) -> tuple[float, str]:
    """The lost hours, and the reason. A compute ran until one o'clock."""
    ran = {"ran_until": (NOON + HOUR).isoformat(), "chain": 2, "log_end": 400, **details}
    hours, why = _lost(RestoreFromStoreDetails.from_json({"lost_host": "h1", **ran}), found)
    return hours / HOUR, why


def test_a_chain_that_was_restored_to_its_end_has_lost_nothing() -> None:
    assert lost(FromStore(NOON, log_end=400, chain=2)) == (0, "")
    assert lost(FromStore(NOON, log_end=399, chain=2)) == (1, "")
    assert lost(FromStore(NOON, log_end=400, chain=2), log_end=None) == (1, "")
    assert lost(FromStore(NOON, log_end=399, chain=2), ran_until=None) == (0, "")
    assert lost(FromStore(NOON, is_complete=True)) == (0, "")


def test_the_end_of_another_chain_says_nothing() -> None:
    assert lost(FromStore(NOON, log_end=500, chain=1)) == (1, "")
    assert lost(FromStore(NOON, log_end=500, chain=None, shortfall="why")) == (1, "why")
    assert lost(FromStore(NOON, log_end=500, chain=1), chain=None, log_end=None) == (1, "")


@pytest.mark.parametrize("ran_until", [None, (NOON + HOUR).isoformat()])
def test_data_of_before_a_restore_says_so(ran_until: str | None) -> None:
    reset_at = (NOON + 2 * HOUR).isoformat()
    known = {"ran_until": ran_until, "reset_at": reset_at}
    hours, why = lost(FromStore(NOON, log_end=500, chain=1), **known)
    assert hours == 2
    assert why == (
        f"the store lacks the data that a restore or reset gave it at {reset_at}, so it has the "
        "data of before"
    )
    assert lost(FromStore(NOON, log_end=400, chain=2), **known) == (0, "")


def test_the_chain_in_the_copy_of_an_earlier_host_is_another_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restored(store: Store, host: str, branch_id: str) -> FromStore:
        if host.endswith("/newer"):
            raise NothingStored("nothing")
        return FromStore(NOON, log_end=500, chain=2)

    monkeypatch.setattr(lost_branches, "_restore_copy", restored)
    branch = Branch(project=Project(region_id="local"), copied_by=["older"])
    assert lost(lost_branches._restore(store, branch)) == (0, "")
    branch.copied_by = ["newer", "older"]
    why = "the host that was lost last had not copied it"
    assert lost(lost_branches._restore(store, branch)) == (1, why)


def shortfall(*chains: StoredChain, store: Store, data: StoredData | None = None) -> str:
    branch = BranchList("br-a", chains=[*chains], data=data)
    return fetching._fetch(store, "br-a", branch, Path("nowhere"), 0).shortfall


def test_what_was_fetched_falls_short_if_its_chain_had_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_fetch_chain", lambda *arguments: (None, None))
    monkeypatch.setattr(fetching, "write_tree", lambda *arguments: None)
    goes_on, ended, begun = chain(bases=[base(100)]), chain(bases=[base(100)]), chain(bases=[])
    ended.ended_at = NOON
    said = partial(shortfall, store=store)
    assert said(goes_on) == said(ended, goes_on) == ""
    assert said(ended).startswith("its history had ended")
    assert said(ended, begun) == "its newest data had not been copied completely"
    newer = StoredData("name", datetime.now(UTC) + HOUR)
    assert said(ended, data=newer) == ""
