"""What the worker tells of the history's copy in the store, and what it deletes there."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane import clock
from controlplane.compute.host.wal import Record
from controlplane.history.local.chain import Base
from controlplane.history.store import log_copies, rounds
from controlplane.history.store.base_copies import _prune_chains
from controlplane.history.store.copier import Copier, Copies
from controlplane.history.store.fetching import _continuous
from controlplane.history.store.layout import (
    BranchList,
    Piece,
    StoredBase,
    StoredChain,
    StoredData,
    read_list,
    write_list,
)
from controlplane.history.store.objects import Bandwidth, Store, StoreFails, StoreMisnamed
from controlplane.history.store.packing import Keyring
from controlplane.history.store_status import BEHIND_AFTER, StoreState, state
from controlplane.models import Account, Event, Host
from controlplane.operations.rounds import vitals
from tests.controlplane.rows import make_project
from tests.support.object_store import file_store

LONG_AGO = BEHIND_AFTER + timedelta(seconds=30)


@pytest.fixture
def used() -> Iterator[StoreState]:
    """The state of a worker with a store."""
    before = dict(vars(state))
    vars(state).update(vars(StoreState(is_used=True, began_at=clock.now())))
    yield state
    vars(state).update(before)


def problem_names() -> set[str]:
    return {found["name"] for found in vitals.problems()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return file_store(tmp_path / "store")


@pytest.mark.django_db
def test_a_copy_that_is_behind_for_long_is_a_problem(used: StoreState) -> None:
    used.behind["br-a"] = clock.now()
    assert "history_copy_behind" not in problem_names()
    used.behind["br-a"] = clock.now() - LONG_AGO
    used.error = "StoreFails: no answer"
    (found,) = [one for one in vitals.problems() if one["name"] == "history_copy_behind"]
    assert "for 1 branches: StoreFails: no answer" in found["detail"]
    used.behind.clear()
    used.rows_behind = clock.now() - LONG_AGO
    (found,) = [one for one in vitals.problems() if one["name"] == "history_copy_behind"]
    assert "behind for the rows: StoreFails" in found["detail"]


@pytest.mark.django_db
def test_a_drill_that_fails_or_is_overdue_is_a_problem(used: StoreState) -> None:
    assert problem_names() & {"history_drill_fails", "history_drill_overdue"} == set()
    used.drilled_at = clock.now() - timedelta(days=3)
    assert "history_drill_overdue" in problem_names()
    used.drill_error = "br-a: an object is damaged"
    assert "history_drill_fails" in problem_names()


@pytest.mark.django_db
def test_an_event_tells_that_a_copy_is_behind_and_that_it_has_caught_up(
    used: StoreState, account: Account, host: Host
) -> None:
    branch = make_project(account, host).branches.get()
    used.behind[branch.id] = clock.now() - LONG_AGO
    log_copies.note_behind()
    log_copies.note_behind()
    used.behind.clear()
    log_copies.note_behind()
    kinds = Event.objects.filter(branch_id=branch.id).order_by("id").values_list("type", flat=True)
    assert list(kinds) == ["history.copy_behind", "history.copy_caught_up"]


@pytest.mark.django_db
def test_projects_without_history_are_counted_and_are_no_problem(
    used: StoreState, store: Store, account: Account, host: Host
) -> None:
    for retention in (0, 3600, 0):
        project = make_project(account, host)
        project.history_retention_seconds = retention
        project.save()
    rounds._count_left_out(Copier(Copies(store, region="local", host="host"), host))
    assert used.as_json()["projects_left_out"] == 2
    assert not any(name.startswith("history_") for name in problem_names())


def test_what_has_failed_is_tried_again_after_a_growing_pause(
    used: StoreState, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(Copies(store, region="local", host="host"), Host(id="local"))
    tries = []

    def fails() -> None:
        tries.append(clock.now())
        raise StoreFails("the store is full")

    now = time.monotonic()
    for seconds, expected in [(0, 1), (1, 1), (2.1, 2), (5, 2), (6.2, 3)]:
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        assert copier.attempt("log", fails) is None
        assert len(tries) == expected, seconds
    assert used.error == "the store is full"
    assert copier.attempt("another", lambda: "done") == "done"
    assert used.error == ""


def test_a_list_comes_back_and_the_newest_counts(store: Store) -> None:
    listed = BranchList("br-a", "project", chains=[chain(bases=[base(100)])])
    listed.data = StoredData("name", clock.now())
    number = 0
    for _ in range(12):
        listed.gone_at = clock.now()
        write_list(store, "branches/br-a", listed)
        found = read_list(store, "branches/br-a")
        assert found is not None
        assert found.as_json() == listed.as_json()
        assert found.number > number
        number = found.number
    assert len(store.names("branches/br-a")) == 1
    assert read_list(store, "branches/br-b") is None


def test_a_list_that_is_begun_anew_counts_once_it_has_a_base(store: Store) -> None:
    complete = BranchList("br-a", "project", chains=[chain(bases=[base(100)])])
    write_list(store, "branches/br-a", complete)
    anew = BranchList("br-a", "project", number=complete.number, chains=[chain(bases=[])])
    write_list(store, "branches/br-a", anew)
    found = read_list(store, "branches/br-a")
    assert found is not None
    assert (found.as_json(), len(found.names)) == (complete.as_json(), 2)
    anew.chains[0].bases.append(base(100))
    write_list(store, "branches/br-a", anew)
    found = read_list(store, "branches/br-a")
    assert found is not None
    assert found.as_json() == anew.as_json()


def base(end: int, *, age: timedelta = timedelta(0)) -> StoredBase:
    at = clock.now() - age
    made = Base(end - 8, end, 1, at, Record(end - 8, 0, 0, end), size=10)
    return StoredBase(made, f"bases/{end}")


def chain(*, bases: list[StoredBase], end: int = 1 << 30) -> StoredChain:
    return StoredChain("000001-a", 1, 7, 1, 0, end, bases=bases)


def test_a_base_counts_only_with_the_log_that_makes_it_consistent() -> None:
    stored = chain(bases=[base(100), base(300)], end=200)
    assert [one.base.end for one in stored.usable_bases] == [100]
    stored.start = 150
    assert stored.usable_bases == []
    assert stored.copied_at is None


def test_what_is_older_than_the_window_is_deleted_except_the_base_that_it_begins_with() -> None:
    days = [timedelta(days=age) for age in (4, 3, 2, 0)]
    bases = [base(n << 26, age=age) for n, age in enumerate(days, start=1)]
    branch = BranchList("br-a", chains=[chain(bases=bases)])
    _prune_chains(branch, clock.now() - timedelta(days=1), {"000001-a"})
    (kept,) = branch.chains
    assert [one.base.end for one in kept.bases] == [3 << 26, 4 << 26]
    assert kept.start == (3 << 26) - (16 << 20)


def test_a_replaced_line_is_kept_for_the_whole_window_though_nothing_was_written_to_it() -> None:
    """It held what the branch was until the restore, also if the branch had slept for days."""
    replaced = chain(bases=[base(100, age=timedelta(days=3))])
    replaced.at, replaced.ended_at = clock.now() - timedelta(days=3), clock.now()
    branch = BranchList("br-a", chains=[replaced, chain(bases=[base(100)])])
    for since, kept in ((-timedelta(days=1), 2), (timedelta(seconds=1), 1)):
        _prune_chains(branch, clock.now() + since, {"000001-a"})
        assert len(branch.chains) == kept


def test_log_behind_one_that_is_missing_is_not_used() -> None:
    pieces = [Piece("c", 20, 30), Piece("a", 0, 10), Piece("again", 0, 5), Piece("b", 10, 20)]
    assert [piece.name for piece in _continuous(pieces, 0, 30)] == ["a", "b", "c"]
    for missing, found in enumerate((["a", "b"], ["again"], ["a", "b", "c"], ["a"])):
        rest = [piece for number, piece in enumerate(pieces) if number != missing]
        assert [piece.name for piece in _continuous(rest, 0, 30)] == found


def test_the_bandwidth_holds_for_all_threads_together() -> None:
    bandwidth = Bandwidth(1_000_000)

    def send() -> None:
        for _ in range(5):
            bandwidth.wait_for(50_000)

    threads = [threading.Thread(target=send) for _ in range(2)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began > 0.4


def test_other_accounts_of_the_host_cannot_list_a_store_on_its_disk(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/the%20store", Keyring("passphrase", bytes(16)), Bandwidth(None))
    assert (tmp_path / "the store").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("url", ["s3://", "ftp://somewhere/else", "nothing"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreMisnamed, match="PERCH_HISTORY_STORE"):
        Store(url, Keyring("passphrase", bytes(16)), Bandwidth(None))


def test_the_newest_state_stays_in_the_store_until_newer_data_is_there() -> None:
    over = chain(bases=[base(100, age=timedelta(days=3))])
    over.ended_at = clock.now() - timedelta(days=2)
    branch = BranchList("br-a", chains=[over])
    _prune_chains(branch, clock.now(), set())
    assert branch.newest is over
    branch.data = StoredData("name", clock.now())
    assert branch.copied_at == branch.data.at
    _prune_chains(branch, clock.now(), set())
    assert branch.chains == []
