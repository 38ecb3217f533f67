"""When the log that a second host has received is needed no more."""

from datetime import timedelta
from pathlib import Path

import pytest

from controlplane import clock
from controlplane.compute.data.branch_data import data_dir
from controlplane.fleet.receivers import log_receivers
from controlplane.fleet.receivers.log_receivers import StoredLog, forget_receivers
from controlplane.history.local.chain import LOG_LOST, Chain
from controlplane.history.local.moments import Moment
from controlplane.history.store import received_logs
from controlplane.history.store.base_copies import copy_base, copy_data
from controlplane.history.store.copier import Copies
from controlplane.history.store.fetching import Fetched
from controlplane.history.store.log_copies import copy_log
from controlplane.history.store.received_logs import _copy
from controlplane.models import Account, Action, Branch, Host, LogReceiver, Operation
from tests.controlplane.history.test_data_copies import write
from tests.controlplane.history.test_log_copies import BRANCH, add_data, chain, copies
from tests.controlplane.rows import make_project

__all__ = ["chain", "copies"]


@pytest.mark.django_db
def test_of_a_history_that_has_ended_only_a_copy_of_the_data_has_all(
    chain: Chain, copies: Copies
) -> None:
    branch = Branch(id=BRANCH)
    copy_log(copies, BRANCH, "project")
    add_data(chain)
    copy_base(copies, BRANCH, timedelta(days=1))
    assert _copy(copies, branch) == StoredLog(chain.copied, is_all=True)
    chain.end(LOG_LOST, clock.now())
    (data_dir(BRANCH) / "global").mkdir(parents=True)
    write(branch, "has run since")
    assert _copy(copies, branch) is None
    assert copy_data(copies, branch)
    assert _copy(copies, branch) == StoredLog(0, is_all=True)
    write(branch, "has run again")
    assert _copy(copies, branch) is None


@pytest.mark.django_db
def test_what_a_restore_still_needs_is_not_forgotten(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch lived on this host before, which has its old data."""
    branch = make_project(account, host).branches.get()
    LogReceiver.objects.create(branch=branch, host=host)
    Operation.objects.update(action=Action.RESTORE_FROM_STORE, status="running")
    monkeypatch.setattr(log_receivers, "_is_all_stored", lambda branch: True)
    forget_receivers(host)
    assert LogReceiver.objects.exists()
    Operation.objects.update(status="finished")
    forget_receivers(host)
    assert not LogReceiver.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reset_after", "is_complete"), [(None, True), (-1, True), (1, False), ("unnoted", False)]
)
def test_the_log_of_replaced_data_completes_no_other_data(
    account: Account,
    host: Host,
    chain: Chain,
    monkeypatch: pytest.MonkeyPatch,
    reset_after: int | str | None,
    is_complete: bool,
) -> None:
    branch = make_project(account, host).branches.get()
    now = clock.now()
    attached_at = None if reset_after == "unnoted" else now
    LogReceiver.objects.create(branch=branch, host=host, attached_at=attached_at)
    if isinstance(reset_after, int):
        branch.last_reset_at = now + timedelta(seconds=reset_after)
    monkeypatch.setattr(received_logs, "_log", lambda row, host, place: place)
    added: list[Path] = []

    def add(_: Chain, log: Path) -> bool:
        added.append(log)
        return True

    monkeypatch.setattr(received_logs, "add_received", add)
    fetched = Fetched(now, moment=Moment(chain, chain.bases()[0], chain.copied, None, None))
    _, found = received_logs.add_received_log(branch, host, fetched, Path("received"))
    assert found is is_complete
    assert added == [Path("received")]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("attached", "shortfall", "is_added"),
    [(-10, "", False), (-10, "its history had ended", True), (1, "", True)],
    ids=["new data", "the new data is not in the store", "the store knows of no new data"],
)
def test_the_log_of_replaced_data_is_added_to_that_data_only(
    account: Account,
    host: Host,
    chain: Chain,
    monkeypatch: pytest.MonkeyPatch,
    attached: int,
    shortfall: str,
    is_added: bool,
) -> None:
    """If both came from the same parent, the log of the old data goes on with that of the new."""
    branch = make_project(account, host).branches.get()
    base = chain.bases()[0]
    attached_at = base.at + timedelta(seconds=attached)
    LogReceiver.objects.create(branch=branch, host=host, attached_at=attached_at)
    branch.last_reset_at = base.at + timedelta(seconds=2)
    monkeypatch.setattr(received_logs, "_log", lambda row, host, place: place)
    added: list[Path] = []
    monkeypatch.setattr(received_logs, "add_received", lambda chain, log: added.append(log))
    fetched = Fetched(base.at, Moment(chain, base, chain.copied, None, None), shortfall=shortfall)
    received_logs.add_received_log(branch, host, fetched, Path("received"))
    assert bool(added) is is_added
