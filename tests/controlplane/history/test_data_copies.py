"""The store gets the data of branches whose history does not go on, as that of snapshots."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane import clock
from controlplane.compute.data.branch_data import data_dir
from controlplane.history.store import base_copies, log_copies, rounds
from controlplane.history.store.copier import Copier, Copies
from controlplane.history.store.host_copies import store_sign
from controlplane.history.store.objects import Store
from controlplane.history.store_status import StoreState
from controlplane.models import Account, Branch, Event, Host
from tests.controlplane.history.test_history_copies import LONG_AGO, base, chain, store, used
from tests.controlplane.rows import make_project

__all__ = ["store", "used"]


@pytest.fixture
def branch(account: Account, host: Host, settings: Any, tmp_path: Path) -> Branch:
    """A branch with data on disk and without a history."""
    settings.STATE_DIR = tmp_path / "state"
    (tmp_path / "state" / "locks").mkdir(parents=True)
    branch = make_project(account, host).branches.get()
    (data_dir(branch.id) / "global").mkdir(parents=True)
    write(branch, "created")
    return branch


def write(branch: Branch, text: str) -> None:
    """Change the branch's data as a Postgres does, which also writes its control file."""
    (data_dir(branch.id) / "global" / "pg_control").write_text(text)


@pytest.mark.django_db
def test_a_branch_without_room_for_a_history_is_copied_after_each_suspend(
    used: StoreState, store: Store, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(Copies(store, region="local", host="host"), Host(id="local"))
    folder = f"{copier.copies.folder(branch.id)}/data"

    def copied() -> str:
        rounds._copy_without_history(copier)
        (name,) = store.names(folder)
        return name

    first = copied()
    assert copied() == first
    write(branch, "has run")
    assert copied() == first, "it was copied a moment ago"
    assert set(used.behind) == copier.data_behind == {branch.id}
    monkeypatch.setattr(base_copies, "MIN_DATA_INTERVAL", timedelta(0))
    with monkeypatch.context() as running:
        running.setattr(base_copies, "running_endpoint", lambda branch_id: "ep-a")
        assert copied() == first
    assert used.as_json()["behind_branches"] == 1
    second = copied()
    assert (second != first, used.behind, copier.data_behind) == (True, {}, set())
    Branch.objects.update(last_reset_at=clock.now())
    third = copied()
    assert third != second, "other data may be in the same state"
    again = Copier(Copies(store, region="local", host="host"), copier.host)
    rounds._copy_without_history(again)
    assert list(store.names(folder)) == [third], "the next worker need not copy it"
    base_copies.prune(again.copies, branch.id, timedelta(days=1))
    assert list(store.names(folder)) == [third]
    base_copies.prune(again.copies, branch.id, timedelta(0))
    assert not store.names(folder), "the project keeps no history any more"


@pytest.mark.django_db
def test_the_log_of_a_history_that_has_ended_does_not_hide_that_the_data_is_behind(
    used: StoreState, store: Store, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(Copies(store, region="local", host="host"), Host(id="local"))
    with copier.copies.holding(branch.id) as listed:
        listed.chains.append(chain(bases=[base(100)]))
    monkeypatch.setattr(base_copies, "running_endpoint", lambda branch_id: "ep-a")
    rounds._copy_without_history(copier)
    log_copies._copy(copier, {branch.id: branch.project_id}, branch.id)
    assert set(used.behind) == {branch.id}
    sign = store_sign(copier.copies, None, {}, copier.data_behind)
    assert sign is not None
    assert sign.lost_since(branch.id, sign.at) == sign.at


@pytest.mark.django_db
def test_data_that_is_not_fit_to_be_copied_is_behind_and_delays_no_other(
    used: StoreState, store: Store, account: Account, host: Host, settings: Any, tmp_path: Path
) -> None:
    settings.STATE_DIR = tmp_path / "state"
    (tmp_path / "state" / "locks").mkdir(parents=True)
    hostile, other = (make_project(account, host).branches.get().id for _ in range(2))
    for branch_id in (hostile, other):
        place = data_dir(branch_id) / "global"
        place.mkdir(parents=True)
        (place / "pg_control").write_text("18\n")
        (place / "x\ny").touch()
    (data_dir(hostile) / "sparse").touch()
    os.truncate(data_dir(hostile) / "sparse", 15 << 40)
    copier = Copier(Copies(store, region="local", host="host"), host)
    rounds._copy_without_history(copier)
    assert set(used.behind) == {hostile}
    with copier.copies.holding(other) as branch:
        assert branch.data
    used.behind[hostile] -= LONG_AGO
    log_copies.note_behind()
    assert [event.branch_id for event in Event.objects.filter(type="history.copy_behind")] == [
        hostile
    ]
    (data_dir(hostile) / "sparse").unlink()
    copier._pauses.clear()
    rounds._copy_without_history(copier)
    assert not used.behind
    log_copies._told.clear()
