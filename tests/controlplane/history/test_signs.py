"""What a host's sign in the store says of the branches that the store may not have completely."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir
from controlplane.history import keeping
from controlplane.history.local.pulling import Flushed
from controlplane.history.store import host_copies, log_copies
from controlplane.history.store.copier import Copier, Copies
from controlplane.history.store.host_copies import Sign, last_sign
from controlplane.history.store.objects import Store
from controlplane.history.store_status import StoreState
from controlplane.models import Host
from tests.controlplane.history.test_history_copies import store, used

__all__ = ["store", "used"]


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def copier(
    now: datetime, store: Store, monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path
) -> Copier:
    """Its host has stored all that is flushed: of `br-quiet` as of now, of the others as of long
    ago."""
    settings.STATE_DIR = tmp_path / "state"
    names = ("br-quiet", "br-hung", "br-behind", "br-uncopied", "br-gone", "br-idle")
    long_ago = now - timedelta(seconds=40)
    looks = {name: Flushed(1, 1000, now if name == "br-quiet" else long_ago) for name in names}
    for name in names[:-2]:
        branch_dir(name).mkdir(parents=True)
    for module in (host_copies, log_copies):
        monkeypatch.setattr(module, "flushed_logs", looks)
    monkeypatch.setattr(log_copies, "_seen", dict.fromkeys(names, 1000))
    monkeypatch.setattr(log_copies, "_sign", None)
    monkeypatch.setattr(compute, "working_branches", lambda: frozenset({"br-quiet", "br-hung"}))
    monkeypatch.setattr(keeping, "uncopied_branches", {"br-uncopied", "br-gone"})
    monkeypatch.setattr(log_copies, "uncopied_branches", keeping.uncopied_branches)
    return Copier(Copies(store, region="local", host="host"), Host(id="local"))


def sign_of(copier: Copier) -> Sign:
    log_copies.copy_logs_to_store(copier)
    sign = last_sign(copier.copies.store, copier.copies.host)
    assert sign is not None
    return sign


@pytest.mark.django_db
def test_a_branch_of_which_the_store_may_lack_log_is_not_complete(
    used: StoreState, copier: Copier, now: datetime
) -> None:
    used.behind["br-behind"] = now
    sign, copied_at = sign_of(copier), now - timedelta(minutes=10)
    lost = {name: sign.lost_since(name, copied_at) for name in log_copies._seen}
    assert lost == {
        # It wrote nothing until the last look.
        "br-quiet": now,
        # Its compute runs, and was not looked at for long.
        "br-hung": copied_at,
        "br-behind": copied_at,
        # Its compute has stopped, and nobody knows where its log ends.
        "br-uncopied": copied_at,
        "br-gone": sign.at,
        "br-idle": sign.at,
    }


@pytest.mark.django_db
def test_a_host_gives_no_signs_while_nothing_runs_and_the_store_has_all(
    used: StoreState, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "SIGN_INTERVAL", timedelta(0))
    assert sign_of(copier).at < sign_of(copier).at
    monkeypatch.setattr(host_copies, "flushed_logs", {})
    keeping.uncopied_branches.clear()
    monkeypatch.setattr(compute, "working_branches", frozenset)
    last = sign_of(copier)
    assert (last.running, sign_of(copier)) == ({}, last)
    # Otherwise a restore would take the newer rows for evidence that something is lost.
    monkeypatch.setattr(host_copies, "_last", host_copies._Last(rows_at=clock.now()))
    newer = sign_of(copier)
    assert last.at < newer.at
    assert sign_of(copier) == newer
