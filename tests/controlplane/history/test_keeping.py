"""What the worker's round publishes of the histories, and when it says that all log of a stopped
branch was copied."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.space import Space
from controlplane.fleet.receivers import log_receivers
from controlplane.fleet.receivers.log_receivers import StoredLog, _is_all_stored
from controlplane.history import keeping
from controlplane.history.keeping import keep_history, remove_outdated
from controlplane.history.local import pulling
from controlplane.history.local.chain import (
    Chain,
    chains_of,
    history_dir,
    holding_history,
    new_chain,
)
from controlplane.models import Account, Branch, Endpoint, HistoryChain, Host
from controlplane.operations import disk
from controlplane.operations.locks import noting_failures
from tests.controlplane.history.test_log_copies import START, add_base, add_log, base_at
from tests.controlplane.rows import make_project

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30
WITH_ROOM, SHORT = Space(100 * GIB, 50 * GIB, 5 * GIB, 0, 0), Space(100 * GIB, GIB, 5 * GIB, 0, 0)


@dataclass
class Kept:
    """A branch with a history and an endpoint, whose compute does not really run."""

    host: Host
    branch: Branch
    patch: pytest.MonkeyPatch
    # Where its log ends, and how often it was copied.
    log_end: int = START + 1000
    copies: int = 0
    # Of each time that its rows were published: whether the history was locked.
    published: list[bool] = field(default_factory=list)

    def enter(self, state: str) -> None:
        """Let its compute run, or stop now."""
        now = clock.now()
        endpoints = Endpoint.objects.filter(branch=self.branch)
        endpoints.update(current_state=state, suspended_at=now, started_at=now)
        running = {one.id for one in endpoints} if state == "active" else set()
        self.patch.setattr(compute, "possibly_running", lambda: running)
        self.patch.setattr(compute, "running_endpoint", lambda _: next(iter(running), None))

    def give_space(self, space: Space) -> None:
        for module in (keeping, disk):
            self.patch.setattr(module, "host_space", lambda: space)

    def copy(self, chain: Chain, *_: object) -> None:
        self.copies += 1
        add_log(chain, self.log_end)

    def row(self) -> HistoryChain:
        return HistoryChain.objects.get(branch=self.branch)

    def is_all_stored(self) -> bool:
        """By what the store has, if the rows say that the history has all."""
        return _is_all_stored(self.branch)

    def look(self) -> int:
        """Do the round's work; returns how often the rows were published."""
        before = len(self.published)
        keep_history(self.host)
        return len(self.published) - before


@pytest.fixture
def kept(account: Account, host: Host, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Kept:
    branch = make_project(account, host).branches.get()
    settings.STATE_DIR.joinpath("locks").mkdir(parents=True, exist_ok=True)
    data_dir(branch.id).mkdir(parents=True)
    base = base_at(START + 8)
    chain = new_chain(history_dir(branch.id), base=base, system_id=7)
    add_base(chain, base)
    add_log(chain, START + 100)
    made = Kept(host, branch, monkeypatch)
    publish = keeping.publish

    def note(branch_id: str, *args: Any) -> None:
        publish(branch_id, *args)
        is_locked = True
        with suppress(LockTimeout), holding_history(branch_id, timeout=0):
            is_locked = False
        made.published.append(is_locked)

    monkeypatch.setattr(keeping, "publish", note)
    monkeypatch.setattr(pulling, "pull_running", made.copy)
    monkeypatch.setattr(pulling, "pull_stopped", made.copy)
    monkeypatch.setattr(keeping, "_looked_at_all", time.monotonic())
    monkeypatch.setattr(keeping, "uncopied_branches", set())
    stored = StoredLog(made.log_end, is_all=True)
    monkeypatch.setattr(log_receivers, "copy_to_store", lambda branch: stored)
    made.give_space(WITH_ROOM)
    return made


def test_a_stopped_branch_is_copied_and_published_once(kept: Kept) -> None:
    kept.enter("idle")
    assert not HistoryChain.objects.exists()
    assert [kept.look(), kept.look(), kept.copies] == [1, 0, 1]
    assert kept.row().last_lsn == kept.log_end
    assert kept.is_all_stored()
    kept.enter("idle")
    assert not kept.is_all_stored()
    assert [kept.look(), kept.look(), kept.copies] == [1, 0, 2]
    assert kept.is_all_stored()


def test_log_that_is_not_copied_while_the_disk_is_short_is_copied_later(kept: Kept) -> None:
    """As of a compute that the guard of the disk has stopped."""
    kept.enter("active")
    kept.look()
    (chain,) = chains_of(kept.branch.id)
    add_base(chain, base_at(START + 80))
    kept.enter("idle")
    kept.log_end += 1000
    kept.give_space(SHORT)
    assert kept.look() == 1, "its first base was removed"
    assert (kept.copies, kept.is_all_stored()) == (1, False)
    assert keeping.uncopied_branches == {kept.branch.id}
    kept.patch.setattr(keeping, "must_make_room", lambda: False)
    assert (kept.look(), kept.is_all_stored()) == (0, False)
    kept.give_space(WITH_ROOM)
    assert [kept.look(), kept.look(), kept.copies] == [1, 0, 2]
    assert (kept.row().last_lsn, kept.is_all_stored()) == (kept.log_end, True)
    assert not keeping.uncopied_branches


def test_what_a_running_compute_has_written_is_copied_again_once_it_has_stopped(kept: Kept) -> None:
    """The look begins before the stop and ends after it."""
    kept.enter("active")
    copy = kept.copy

    def stops(chain: Chain, *_: object) -> None:
        copy(chain)
        kept.enter("idle")

    kept.patch.setattr(pulling, "pull_running", stops)
    assert (kept.look(), kept.is_all_stored()) == (1, False)
    kept.log_end += 1000
    assert [kept.look(), kept.look(), kept.copies] == [1, 0, 2]
    assert (kept.row().last_lsn, kept.is_all_stored()) == (kept.log_end, True)


def test_a_running_branch_is_published_when_it_has_changed(kept: Kept) -> None:
    kept.enter("active")
    assert [kept.look(), kept.look()] == [1, 0]
    kept.log_end += 1000
    assert [kept.look(), kept.look()] == [1, 0]
    assert kept.row().last_lsn == kept.log_end


def test_what_a_lasting_look_has_found_is_not_published_after_a_restore(kept: Kept) -> None:
    """It waits for the history's lock, and publishes its own chains."""
    kept.enter("idle")
    kept.look()
    assert kept.published == [True]


def test_a_branch_that_is_deleted_meanwhile_is_no_problem_of_the_round(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(keeping, "publish", publish)
    kept.enter("idle")
    with noting_failures() as failures:
        keep_history(kept.host)
    assert (kept.copies, failures) == (1, [])


def test_what_is_removed_of_a_history_does_not_say_that_the_log_was_copied(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.enter("idle")
    kept.look()
    kept.enter("idle")
    monkeypatch.setattr(keeping, "outdated", lambda host: {(kept.branch.id, 3600)})
    remove_outdated(kept.host)
    assert not kept.is_all_stored()
    assert (kept.look(), kept.copies) == (1, 2)
