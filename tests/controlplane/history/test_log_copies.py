"""A chain on disk is copied to the store: its log once and never across a gap, and its bases."""

import json
import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane import clock
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import Record, segment_name, write_sum
from controlplane.history.local.chain import Base, Chain, history_dir, new_chain
from controlplane.history.store import base_copies, rounds
from controlplane.history.store.copier import Copies
from controlplane.history.store.fetching import Fetched, _fetch_log, fetched_branch
from controlplane.history.store.layout import (
    BranchList,
    Piece,
    StoredData,
    pieces_in,
    read_list,
)
from controlplane.history.store.log_copies import LogDamaged, copy_log, is_behind
from controlplane.history.store.objects import StoreFails
from controlplane.history.store.packing import Damaged, WrongKey
from tests.support.object_store import file_store

BRANCH = "br-a"
DAY = timedelta(days=1)
START = SEGMENT_SIZE


@pytest.fixture
def chain(tmp_path: Path, settings: Any) -> Chain:
    """A chain on disk with a base and half a segment of log."""
    settings.STATE_DIR = tmp_path
    for name in ("locks", "branches"):
        (tmp_path / name).mkdir()
    history_dir(BRANCH).parent.mkdir()
    base = base_at(START + 8)
    made = new_chain(history_dir(BRANCH), base=base, system_id=7)
    add_base(made, base)
    add_log(made, START + SEGMENT_SIZE // 2)
    return made


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(file_store(tmp_path / "store"), region="local", host="host")


def base_at(redo: int) -> Base:
    return Base(redo, redo + 8, 1, clock.now(), Record(redo, 0, 0, redo + 8), 1)


def add_base(chain: Chain, base: Base) -> None:
    chain.place_of(base).mkdir(exist_ok=True)
    (chain.place_of(base) / "base.json").write_text(json.dumps(base.as_json()))
    chain.write()


def add_log(chain: Chain, until: int) -> None:
    """Add log until the position, as the history round does."""
    while chain.copied < until:
        name = segment_name(1, chain.copied)
        stop = min(chain.copied - chain.copied % SEGMENT_SIZE + SEGMENT_SIZE, until)
        with (chain.log / name).open("ab") as segment:
            segment.write(os.urandom(stop - chain.copied))
        write_sum(chain.log / name)
        chain.copied, chain.copied_at = stop, clock.now()
    chain.write()


def stored_pieces(copies: Copies, chain_id: str) -> list[Piece]:
    return pieces_in(copies.store.names(f"{copies.folder(BRANCH)}/{chain_id}/log"))


def copied(copies: Copies) -> BranchList:
    """Copy the log; the list in the store is what it returns."""
    branch = copy_log(copies, BRANCH, "project")
    in_store = read_list(copies.store, copies.folder(BRANCH))
    assert in_store is not None
    assert in_store.as_json() == branch.as_json()
    return branch


def again(copies: Copies) -> Copies:
    """What the next worker knows."""
    return Copies(copies.store, region="local", host="host")


@pytest.mark.thorough
def test_only_new_log_is_copied_by_the_next_worker_too(chain: Chain, copies: Copies) -> None:
    (stored,) = copied(copies).chains
    assert (stored.start, stored.end) == (START, chain.copied)
    middle, end = chain.copied, START + 2 * SEGMENT_SIZE + 100
    add_log(chain, end)
    assert is_behind(copied(copies), BRANCH) is False
    (stored,) = copied(again(copies)).chains
    found = [(piece.start, piece.end) for piece in stored_pieces(copies, stored.id)]
    segments = [START + SEGMENT_SIZE, START + 2 * SEGMENT_SIZE]
    assert found == [
        (START, middle),
        (middle, segments[0]),
        (segments[0], segments[1]),
        (segments[1], end),
    ]


@pytest.mark.thorough
def test_log_that_was_removed_before_it_was_copied_begins_another_chain(
    chain: Chain, copies: Copies
) -> None:
    (first,) = copied(copies).chains
    end = START + 3 * SEGMENT_SIZE
    add_log(chain, end)
    later = START + 2 * SEGMENT_SIZE
    add_base(chain, base_at(later))
    for name in chain.segments()[:2]:
        (chain.log / name).unlink()
    before, after = copied(copies).chains
    assert before.id == first.id
    assert before.end < after.start == later
    assert after.end == end


@pytest.mark.thorough
def test_a_state_directory_that_was_taken_back_begins_another_chain(
    chain: Chain, copies: Copies
) -> None:
    """As by a snapshot of a virtual machine: the log goes on otherwise than it did in the store."""
    (first,) = copied(copies).chains
    name = segment_name(1, START)
    (chain.log / name).write_bytes(os.urandom(SEGMENT_SIZE // 2))
    write_sum(chain.log / name)
    before, after = copied(again(copies)).chains
    assert before.id == first.id != after.id
    assert [piece.start for piece in stored_pieces(copies, after.id)] == [START]


def test_a_damaged_segment_is_not_copied(chain: Chain, copies: Copies) -> None:
    name = segment_name(1, START)
    (chain.log / name).write_bytes(bytes(SEGMENT_SIZE // 2))
    with pytest.raises(LogDamaged, match=name):
        copy_log(copies, BRANCH, "project")
    assert read_list(copies.store, copies.folder(BRANCH)) is None


def test_what_the_list_does_not_name_does_not_count(
    chain: Chain, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = copied(copies).chains
    add_log(chain, START + SEGMENT_SIZE)

    def fails(branch: BranchList) -> None:
        raise StoreFails("away")

    with monkeypatch.context() as away:
        away.setattr(copies, "write", fails)
        with pytest.raises(StoreFails):
            copy_log(copies, BRANCH, "project")
    assert len(stored_pieces(copies, first.id)) == 2
    (stored,) = copied(copies).chains
    assert stored.end == chain.copied
    assert is_behind(copied(copies), BRANCH) is False


def test_a_chain_comes_back_from_its_newest_base(
    chain: Chain, copies: Copies, tmp_path: Path
) -> None:
    copied(copies)
    assert copied(copies).copied_at is None, "without a base, log is of no use"
    (base,) = chain.bases()
    (chain.data_of(base) / "global").mkdir(parents=True)
    (chain.data_of(base) / "global" / "pg_control").write_bytes(b"control")
    assert base_copies.copy_base(copies, BRANCH, DAY)
    assert not base_copies.copy_base(copies, BRANCH, DAY), "no other one is due"
    add_log(chain, START + 2 * SEGMENT_SIZE + 100)
    copied(copies)
    place = tmp_path / "fetched"
    with fetched_branch(copies.store, copies.folder(BRANCH), place) as fetched:
        assert fetched.moment is not None
        found = fetched.moment.chain
        assert found.segments() == chain.segments()
        for name in chain.segments():
            expected = (chain.log / name).read_bytes()
            assert (found.log / name).read_bytes()[: len(expected)] == expected
        data = found.data_of(fetched.moment.base)
        assert (data / "global" / "pg_control").read_bytes() == b"control"
    assert not place.exists()


@pytest.fixture
def copied_chain(chain: Chain, copies: Copies) -> Chain:
    """The chain, whose log the store has, with data in its base."""
    copied(copies)
    add_data(chain)
    return chain


def add_data(chain: Chain) -> None:
    for base in chain.bases():
        chain.data_of(base).mkdir(exist_ok=True)
        (chain.data_of(base) / "PG_VERSION").write_text(f"{base.end}")


def test_a_base_that_another_thread_is_storing_is_neither_pruned_nor_listed_twice(
    copied_chain: Chain, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting compute copies its base, as the round does, which also prunes."""
    with copies.holding(BRANCH) as branch:
        branch.data = StoredData(f"{copies.folder(BRANCH)}/data/1", clock.now() - DAY)
        copies.write(branch)
    put = copies.store.put

    def is_overtaken(name: str, content: Any) -> None:
        put(name, content)
        monkeypatch.undo()
        assert base_copies.copy_base(copies, BRANCH, DAY)
        base_copies.prune(copies, BRANCH, DAY)
        assert copies.store.size_of(name) is not None

    monkeypatch.setattr(copies.store, "put", is_overtaken)
    assert not base_copies.copy_base(copies, BRANCH, DAY)
    with copies.holding(BRANCH) as branch:
        listed = [one.name for one in branch.chains[0].bases]
    assert listed == list(
        copies.store.names(f"{copies.folder(BRANCH)}/{branch.chains[0].id}/bases")
    )
    assert (len(listed), copies.in_flight) == (1, set())


def test_without_its_newest_base_a_chain_comes_back_from_an_earlier_one(
    copied_chain: Chain, copies: Copies, tmp_path: Path
) -> None:
    assert base_copies.copy_base(copies, BRANCH, DAY)
    add_base(copied_chain, base_at(START + 4096))
    add_data(copied_chain.with_base())
    assert base_copies.copy_base(copies, BRANCH, timedelta(0))
    (stored,) = copied(copies).chains
    copies.store.delete([stored.bases[-1].name])
    with fetched_branch(copies.store, copies.folder(BRANCH), tmp_path / "fetched") as fetched:
        assert fetched.moment is not None
        assert fetched.moment.base.end == START + 16
        assert (fetched.moment.stop, fetched.shortfall) == (copied_chain.copied, "")
        assert "is missing" in fetched.damage
    copies.store.delete([stored.bases[0].name])
    with (
        pytest.raises(Damaged, match="is missing"),
        fetched_branch(copies.store, copies.folder(BRANCH), tmp_path / "fetched"),
    ):
        pass


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_chain_comes_back_until_log_that_is_missing(
    copied_chain: Chain, copies: Copies, tmp_path: Path, is_damaged: bool
) -> None:
    """The log behind it is not used, nor any if the base is not complete without it."""
    assert base_copies.copy_base(copies, BRANCH, DAY)
    ends = [copied_chain.copied]
    for size in (100, 200):
        add_log(copied_chain, START + SEGMENT_SIZE + size)
        (stored,) = copied(copies).chains
        ends.append(copied_chain.copied)
    first, *_, third, last = sorted(stored_pieces(copies, stored.id), key=lambda one: one.start)

    def lose(piece: Piece) -> None:
        copies.store.delete([piece.name])
        if is_damaged:
            (tmp_path / "store" / piece.name).write_bytes(os.urandom(200))

    def fetched(to_gap: bool) -> Fetched:
        place, folder = tmp_path / "fetched", copies.folder(BRANCH)
        with fetched_branch(copies.store, folder, place, to_gap=to_gap) as found:
            return found

    assert fetched(to_gap=True).gap is None
    for piece in (last, third):
        lose(piece)
        with pytest.raises((Damaged, WrongKey)):
            fetched(to_gap=False)
        found = fetched(to_gap=True)
        assert found.moment is not None
        assert found.gap is not None
        assert (found.moment.stop, found.moment.chain.copied) == (piece.start, piece.start)
        assert found.at == found.moment.base.at
    lose(first)
    with pytest.raises((Damaged, WrongKey)):
        fetched(to_gap=True)


@pytest.mark.thorough
def test_what_retention_and_deletion_leave_over_is_deleted_in_the_store(
    chain: Chain, copies: Copies
) -> None:
    (stored,) = copied(copies).chains
    later = START + 2 * SEGMENT_SIZE
    add_log(chain, START + 3 * SEGMENT_SIZE)
    copied(copies)
    for base in (*chain.bases(), base_at(later)):
        chain.data_of(base).mkdir(parents=True)
        if base.end > later:
            add_base(chain, base)
        # With a window of nothing, each further base is due.
        assert base_copies.copy_base(copies, BRANCH, timedelta(0))
    assert len(copies.store.names(f"{copies.folder(BRANCH)}/{stored.id}/bases")) == 2
    base_copies.prune(copies, BRANCH, timedelta(0))
    assert [piece.start for piece in stored_pieces(copies, stored.id)] == [later]
    assert len(copies.store.names(f"{copies.folder(BRANCH)}/{stored.id}/bases")) == 1
    remove_tree(chain.place)
    base_copies.delete_gone(copies, BRANCH, DAY)
    assert copies.store.names(copies.folder(BRANCH))
    base_copies.delete_gone(copies, BRANCH, timedelta(0))
    assert copies.store.names(copies.folder(BRANCH)) == {}


def test_pieces_and_templates_that_cannot_be_read_are_left_out(
    chain: Chain, copies: Copies, tmp_path: Path
) -> None:
    (stored,) = copied(copies).chains
    (base,) = chain.bases()
    (tmp_path / "templates" / "v").mkdir(parents=True)
    log, template = f"{copies.folder(BRANCH)}/{stored.id}/log", f"{copies.host}/templates/v"
    names = [f"{log}/{start:016X}-{0x7FFFFFFFFFFFFFFF:016X}-0" for start in (0, START)]
    for name in (*names, f"{template}/0"):
        place = tmp_path / "store" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(200))

    fetched = replace(chain, place=tmp_path / "fetched" / "000001")
    fetched.log.mkdir(parents=True)
    _fetch_log(copies.store, log, fetched, base)
    name = segment_name(1, START)
    content = (chain.log / name).read_bytes()
    assert (fetched.log / name).read_bytes()[: len(content)] == content

    made = base_copies._template(copies, chain, replace(base, template="v"))
    assert made != f"{template}/0"
    assert base_copies._template(again(copies), chain, replace(base, template="v")) == made


def test_it_is_copied_by_a_service_whose_own_priority_is_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    copied = threading.Event()
    unused: Any = None
    monkeypatch.setattr(os, "setpriority", refuse)
    rounds._in_thread(lambda _: copied.set(), unused)(unused)
    assert copied.wait(10)
