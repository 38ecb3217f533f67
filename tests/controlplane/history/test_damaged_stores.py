"""What a store has that nobody with the key has written, or that was damaged there, costs what is
in the damaged object, and not the restore of all others."""

import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError

from controlplane import clock
from controlplane.backup.manifest import Manifest, write_manifest
from controlplane.backup.restoring import RestoreRefused
from controlplane.compute.host.tree import open_directory
from controlplane.history.store import host_copies, restoring
from controlplane.history.store.copier import Copies
from controlplane.history.store.fetching import Fetched, fetched_branch
from controlplane.history.store.host_copies import Sign, last_sign, store_sign
from controlplane.history.store.layout import (
    BranchList,
    StoredData,
    pieces_in,
    read_list,
    write_list,
)
from controlplane.history.store.lost_branches import _complete_until
from controlplane.history.store.objects import Bandwidth, Store, StoreFails
from controlplane.history.store.packing import Damaged, Keyring, WrongKey, tree_stream
from controlplane.history.store.restoring import Restored, newest_rows, read_rows
from controlplane.management.commands.restore import Command as RestoreCommand
from tests.support.object_store import file_store

FOLDER = "regions/local/host"
ROWS = [f"{FOLDER}/metadata/2026110{day}T000000.000000Z-0a" for day in (1, 2)]
BRANCHES = ["br-bad", "br-good"]
LISTED = f"{FOLDER}/branches/br-unknown"


@pytest.fixture
def store(tmp_path: Path, settings: Any) -> Store:
    """A store with two copies of the rows, a sign and the list of a branch."""
    settings.REGION = "local"
    made = file_store(tmp_path / "store")
    for name in ROWS:
        made.put(name, b"rows")
    write_list(made, LISTED, BranchList("br-unknown"))
    return made


def add_junk(tmp_path: Path, name: str) -> Path:
    """Put an object there that nobody with the key has written."""
    place = tmp_path / "store" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(os.urandom(200))
    return place


def damage(tmp_path: Path, name: str) -> None:
    """Change a byte of the check of the key."""
    (place,) = (tmp_path / "store").rglob(name.rpartition("/")[2])
    content = bytearray(place.read_bytes())
    content[40] ^= 1
    place.write_bytes(content)


def test_the_newest_rows_that_can_be_read_are_restored(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    assert [*newest_rows(store, None, said.append)] == [(FOLDER, ROWS[1])]
    damage(tmp_path, ROWS[1])
    # Without the key, others can only write what is nobody's.
    (tmp_path / "store" / FOLDER / "metadata" / "99991231T000000.000000Z-zz").write_text("x")
    assert [*newest_rows(store, None, said.append)] == [(FOLDER, ROWS[0])]
    assert [words.partition(" ")[2] for words in said] == ["cannot be read"] * 2


def test_damaged_rows_are_no_wrong_key(store: Store, tmp_path: Path) -> None:
    for name in ROWS:
        damage(tmp_path, name)
    with pytest.raises(Damaged, match="none of the 2 copies of the rows"):
        next(newest_rows(store, None, print))


def test_a_key_that_reads_nothing_is_a_wrong_key(store: Store, tmp_path: Path) -> None:
    other = Store(f"file://{tmp_path}/store", Keyring("another", bytes(16)), Bandwidth(None))
    with pytest.raises(WrongKey, match="PERCH_HISTORY_KEY"):
        next(newest_rows(other, None, print))


def put_rows(store: Store, tmp_path: Path, host: str, day: int, host_name: str) -> None:
    """Put the rows of a host into the store, as far as its manifest."""
    at = clock.now()
    directory = tmp_path / host
    directory.mkdir()
    write_manifest(directory, Manifest("1", "18", "local", at, at, [], {}, host=host_name))
    opened = os.open(directory, os.O_DIRECTORY)
    name = f"regions/local/{host}/metadata/202611{day}T000000.000000Z-0a"
    store.put(name, tree_stream(opened))
    os.close(opened)


def test_rows_of_another_host_are_passed_over(store: Store, tmp_path: Path, settings: Any) -> None:
    store.delete(ROWS)
    for number, name in enumerate(["lost", "lost", "other"], start=11):
        put_rows(store, tmp_path, f"host{number}", number, name)

    def read(named: bool = False) -> str:
        copies = newest_rows(store, None, print)
        return read_rows(store, copies, tmp_path / "rows", print, named)[0]

    settings.HOST_NAME = "lost"
    assert read() == "regions/local/host12"
    assert read(named=True) == "regions/local/host13"
    # Nobody with the key has written this one.
    (tmp_path / "store/regions/local/zz/metadata").mkdir(parents=True)
    (tmp_path / "store/regions/local/zz/metadata/99991231T000000.000000Z-zz").write_text("x")
    assert read() == "regions/local/host12"
    settings.HOST_NAME = "third"
    with pytest.raises(RestoreRefused, match=r'host "lost" and "other", and none of the .*"third"'):
        read()


@pytest.mark.django_db
@pytest.mark.parametrize("error", [WrongKey, ValueError, OverflowError, Damaged])
def test_a_damaged_branch_keeps_no_other_from_being_restored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    at = clock.now()

    @contextmanager
    def fetched_branch(
        _: Store, folder: str, place: Path, number: int, *, to_gap: bool
    ) -> Iterator[Fetched]:
        if folder.endswith("br-bad"):
            raise error("set another key")
        yield Fetched(at)

    monkeypatch.setattr(restoring, "ready_branches", lambda: BRANCHES)
    monkeypatch.setattr(restoring, "fetched_branch", fetched_branch)
    monkeypatch.setattr(restoring, "create_branch", lambda *_: None)
    restored = Restored(at, Sign(at))
    restoring._restore_branches(store, FOLDER, restored, tmp_path, print)
    assert restored.branches == {"br-good": at}
    assert list(restored.missing) == ["br-bad", "br-unknown"]
    # Another key would not help.
    assert error is not WrongKey or "key" not in restored.missing["br-bad"]


@pytest.fixture
def rows_of_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of rows have only their manifest."""

    def manifest_of_now(majors: str) -> Manifest:
        return Manifest("1", majors, "local", clock.now(), clock.now(), [], {})

    monkeypatch.setattr(host_copies, "snapshot", nullcontext)
    monkeypatch.setattr(host_copies, "_majors", lambda: "18")
    monkeypatch.setattr(host_copies, "manifest_of_now", manifest_of_now)
    monkeypatch.setattr(host_copies, "dump", lambda place, snapshot: None)
    monkeypatch.setattr(host_copies, "copy_secrets", lambda place: None)
    monkeypatch.setattr(host_copies, "_last", host_copies._Last())


@pytest.mark.usefixtures("rows_of_no_database")
def test_two_copies_of_the_rows_stay_whatever_others_add(
    store: Store, tmp_path: Path, settings: Any
) -> None:
    """A copy with a later name may also be of a time when the clock was ahead."""
    settings.STATE_DIR = tmp_path
    copies, folder = Copies(store, region="local", host="host"), f"{FOLDER}/metadata"
    ahead = f"{folder}/99990101T000000.000000Z-0a"
    store.put(ahead, b"rows")

    def copied() -> list[str]:
        for day in ("20261103", "99991230", "99991231"):
            add_junk(tmp_path, f"{folder}/{day}T000000.000000Z-zz")
        host_copies._copy_rows(copies)
        return list(store.names(folder))

    before, first = copied()
    assert before == ROWS[1]
    assert first not in (*ROWS, ahead)
    add_junk(tmp_path, f"{first}-zz")
    second, third = copied()
    assert second == first
    assert store.is_whole(third)
    # After a restart of the worker.
    host_copies._last.name = ""
    assert copied()[0] == third


def test_what_is_no_former_key_keeps_none_from_being_read(tmp_path: Path, settings: Any) -> None:
    settings.REGION = "local"

    def opened(key: str) -> Store:
        return Store(f"file://{tmp_path}/store", Keyring(key, bytes(16)), Bandwidth(None))

    opened("former").put("a", b"content")
    opened("present").keep_former_keys(["former"])
    add_junk(tmp_path, "keys/local/junk")
    assert b"".join(opened("present").get("a")) == b"content"
    assert opened("present").keep_former_keys(["the one before"]) == 2


def test_what_is_no_piece_of_the_log_is_left_out() -> None:
    good = f"a/log/{0:016X}-{5:016X}-0a1b"
    (piece,) = pieces_in(["a/log/junk", good, "a/log/zz-yy-xx", "a/log/1-2-3", "a/log/--"])
    assert (piece.name, piece.start, piece.end) == (good, 0, 5)


def test_a_list_that_cannot_be_read_is_passed_over_until_the_next_is_written(
    store: Store, tmp_path: Path
) -> None:
    junk = add_junk(tmp_path, f"{LISTED}/lists/999999999999-00")
    found = read_list(store, LISTED)
    assert found is not None
    assert found.branch_id == "br-unknown"
    assert found.names[0].startswith(f"{LISTED}/lists/{found.number:012}-")
    write_list(store, LISTED, found)
    assert not junk.exists()
    damage(tmp_path, found.names[0])
    with pytest.raises(WrongKey):
        read_list(store, LISTED)


def test_a_sign_that_cannot_be_read_keeps_no_branch_from_being_restored(
    store: Store, tmp_path: Path
) -> None:
    add_junk(tmp_path, f"{FOLDER}/signs/99991231T235959.000000Z-00")
    at = clock.now()
    assert last_sign(store, FOLDER) is None
    assert _complete_until(None, "br-good", Fetched(at), None) == at


def test_an_earlier_list_that_is_put_back_is_not_complete(store: Store, tmp_path: Path) -> None:
    copies, at = Copies(store, region="local", host="host"), clock.now()
    with copies.holding("br-good") as branch:
        branch.data = StoredData("data", at)
        copies.write(branch)
        (earlier,) = branch.names
        (tmp_path / "kept").write_bytes((tmp_path / "store" / earlier).read_bytes())
        copies.write(branch)
        store.delete(branch.names)
    (tmp_path / "store" / earlier).write_bytes((tmp_path / "kept").read_bytes())
    store_sign(copies, None, {}, ["br-good"])
    sign, data = last_sign(store, FOLDER), tmp_path / "data"
    assert sign is not None
    data.mkdir()
    with open_directory(data) as directory:
        store.put("data", tree_stream(directory))
    folder, place = copies.folder("br-good"), tmp_path / "place"
    with fetched_branch(store, folder, place, sign.lists["br-good"]) as fetched:
        assert fetched.shortfall == "the store does not give the last list of its copies"
    with fetched_branch(store, folder, place, sign.lists["br-good"] - 1) as fetched:
        assert not fetched.shortfall
    # The same process does not go on with it either.
    with pytest.raises(ZeroDivisionError), copies.holding("br-good"):
        raise ZeroDivisionError
    with pytest.raises(StoreFails, match="was written there last"), copies.holding("br-good"):
        pass


@pytest.mark.parametrize("seconds", [None, 0, 40])
def test_everything_is_there_only_if_nothing_is_newer_than_the_sign(seconds: int | None) -> None:
    """Whoever can write to the store may have removed the last sign, or put back an earlier one."""
    now, out = clock.now(), io.StringIO()
    sign = None if seconds is None else Sign(now - timedelta(seconds=seconds))
    branches = {"br-good": now - timedelta(seconds=50), "br-other": now}
    RestoreCommand(stdout=out)._list_losses(Restored(now, sign, branches))
    (said,) = (line for line in out.getvalue().splitlines() if line.startswith("br-good"))
    assert ("has everything: " in said) == (seconds == 0)
    lost = {None: "up to 50.0 s are lost", 0: "", 40: "up to 40.0 s are lost"}[seconds]
    assert lost in said


def test_rows_that_are_newer_than_the_sign_show_that_the_host_lived_on() -> None:
    """An earlier sign was put back, with earlier objects of the branch."""
    now, out = clock.now(), io.StringIO()
    sign, branches = Sign(now - timedelta(seconds=40)), {"br-good": now - timedelta(seconds=50)}
    RestoreCommand(stdout=out)._list_losses(Restored(now, sign, branches))
    assert f"last wrote to the store at {now:%Y-%m-%d %H:%M:%S.%f} UTC" in out.getvalue()
    assert "has everything: " not in out.getvalue()
    assert "up to 40.0 s are lost" in out.getvalue()


def test_log_that_is_missing_is_said_and_ends_with_status_2() -> None:
    now, out, err = clock.now(), io.StringIO(), io.StringIO()
    branches, why = {"br-good": now - timedelta(seconds=50)}, "the log from 400 on is missing"
    restored = Restored(now, Sign(now), branches, {"br-good": why}, {"br-good": why})
    with pytest.raises(CommandError, match=f"br-good lacks data: {why}") as ended:
        RestoreCommand(stdout=out, stderr=err)._list_losses(restored)
    assert ended.value.returncode == 2
    assert f"not complete after {branches['br-good']:%Y-%m-%d %H:%M:%S.%f} UTC: {why}" in (
        err.getvalue()
    )
    assert "has everything" not in out.getvalue()


def test_a_store_that_lists_without_an_end_fails(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ([{"path": f"{LISTED}/{number}", "size": 1}] for number in itertools.count())
    monkeypatch.setattr("obstore.list", lambda *_: parts)
    with pytest.raises(StoreFails, match="it lists more than 1,000 objects"):
        store.newest(LISTED)
