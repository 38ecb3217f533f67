"""What another host sends is written into the branch alone, whatever the branch's account has put
in place of its directories and files."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.accounts import account_of, own_account, set_owner
from controlplane.compute.host.filesystem import lock_branches
from controlplane.fleet import messages as links_module
from controlplane.fleet.messages import Link, LinkBroken, MoveInterrupted, MoveRefused
from controlplane.fleet.moving import receiving, receiving_moves
from controlplane.fleet.moving.receiving import Following, receive_branch, receive_unlogged_files
from controlplane.fleet.moving.sending import SentBlocks, send_branch
from tests.support.own_compute import own_branch

BRANCH, OTHER = "br-received-000001", "br-bystander-00001"
CONTENT = b"sent by the other host"
Message = dict[str, object] | bytes


@pytest.fixture
def branch() -> Iterator[Path]:
    with lock_branches(BRANCH, OTHER), own_branch(BRANCH) as place:
        yield place


@pytest.fixture
def bystander(branch: Path) -> Iterator[Path]:
    with own_branch(OTHER) as place:
        yield place


def file(name: str, content: bytes = CONTENT) -> list[Message]:
    size = len(content)
    told: Message = {"file": name, "size": size, "mode": 0o600}
    return [told, {"at": 0, "length": size}, content, {"end": name}]


def links(*messages: Message) -> tuple[Link, Link]:
    """A connection over which the messages were sent, and its other end."""
    ends = [Link(end) for end in socket.socketpair()]
    for message in (*messages, {"complete": BRANCH}):
        if isinstance(message, bytes):
            ends[0].send_bytes(message)
        else:
            ends[0].send(**message)
    ends[0].flush()
    return ends[1], ends[0]


def receive(*messages: Message) -> None:
    link, other = links(*messages)
    with closing(link), closing(other):
        receive_unlogged_files(link, BRANCH)


def tree(place: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below the place: its owner, mode, inode and content."""
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if is_file else b""
        found[str(path)] = (status.st_uid, status.st_mode, status.st_ino, content)
    return found


def replace_by_link(path: Path, target: Path) -> None:
    """As a process of the branch's account does."""
    shutil.rmtree(path)
    path.symlink_to(target)
    set_owner(path, account_of(branch_dir(BRANCH)))


@pytest.mark.parametrize("linked", ["global", "base/1", "base", "pg_stat", "pg_wal"])
def test_a_directory_that_is_a_link_leads_nowhere(
    branch: Path, bystander: Path, linked: str
) -> None:
    before = tree(bystander)
    replace_by_link(branch / "data" / linked, bystander / "data" / linked)
    name = next(path.name for path in (bystander / "data" / linked).iterdir())
    for messages in (
        file(f"data/{linked}/{name}"),
        file(f"data/{linked}/new"),
        [{"directory": f"data/{linked}"}],
        [{"directory": f"data/{linked}/{name}"}],
        [{"directory": f"data/{linked}/new"}],
    ):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            receive(*messages)
    assert tree(bystander) == before


def test_files_and_directories_replace_what_is_there(branch: Path, bystander: Path) -> None:
    before, data, account = tree(bystander), branch / "data", account_of(branch)
    control = data / "global" / "pg_control"
    control.unlink()
    control.symlink_to(bystander / "data" / "global" / "pg_control")
    (data / "pg_stat" / "old").touch()
    receive(
        *file("data/global/pg_control"),
        {"directory": "data/pg_stat"},
        *file("data/pg_stat/new"),
        {"directory": "data/pg_replslot/kept"},
    )
    assert control.read_bytes() == CONTENT
    assert not control.is_symlink()
    assert [path.name for path in (data / "pg_stat").iterdir()] == ["new"]
    for name in ("global/pg_control", "pg_stat", "pg_stat/new", "pg_replslot/kept"):
        assert (data / name).stat().st_uid == account.uid
    assert tree(bystander) == before


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/passwd", "data/../../x", "a\0b", "a/" * 20])
def test_a_path_that_leads_out_of_the_branch_is_refused(branch: Path, name: str) -> None:
    for messages in (file(name), [{"directory": name}]):
        with pytest.raises(LinkBroken, match="out of the branch"):
            receive(*messages)


def test_blocks_are_not_shared_through_links_or_with_files_of_others(
    branch: Path, bystander: Path
) -> None:
    secret = b"of root alone"
    mine = bystander.parent / "not-of-a-branch"
    mine.write_bytes(secret)
    data = branch / "data"
    try:
        (data / "link").symlink_to(mine)
        (data / "way").symlink_to(mine.parent)
        os.link(mine, data / "hard")
        for like in ("link", f"way/{mine.name}", *(["hard"] if os.geteuid() == 0 else [])):
            told: Message = {"file": "data/copy", "size": len(secret), "mode": 0o600}
            part: Message = {
                "at": 0,
                "length": len(secret),
                "like": f"{BRANCH}/data/{like}",
                "of": 0,
            }
            with pytest.raises((OSError, LinkBroken)):
                receive(told, part, {"end": "data/copy"})
            assert secret not in (data / "copy").read_bytes()
    finally:
        mine.unlink()


def test_what_alter_system_wrote_stays_behind() -> None:
    settings = b"shared_preload_libraries = '/tmp/mine.so'\n"
    messages: list[Message] = [{"directory": "data"}, *file("data/postgresql.auto.conf", settings)]
    link, other = links(*messages)
    try:
        with lock_branches(BRANCH), closing(link), closing(other):
            receive_branch(link, BRANCH, (), Following())
            assert (branch_dir(BRANCH) / "data" / "postgresql.auto.conf").read_bytes() == b""
            receive(*file("data/postgresql.auto.conf", settings))
            assert (branch_dir(BRANCH) / "data" / "postgresql.auto.conf").read_bytes() == b""
    finally:
        compute.remove(BRANCH)


def test_a_sender_learns_why_the_rest_of_a_branch_is_refused(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.STATE_DIR = tmp_path
    data, staging = branch_dir(BRANCH) / "data" / "base", tmp_path / "staging"
    data.mkdir(parents=True)
    staging.mkdir()
    (data / "large").write_bytes(bytes(2 << 20))
    for number in range(32):
        (data / f"after-{number}").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(receiving, "_MAX_FILE_BYTES", (2 << 20) - 1)

    def answer(link: Link, sender: str, host_id: str) -> None:
        link.receive()
        receiving._Receiver(link, BRANCH, (), staging, own_account(), Following()).receive()

    monkeypatch.setattr(receiving_moves, "_answer", answer)
    monkeypatch.setattr(receiving_moves, "close_old_connections", lambda: None)
    ours, theirs = socket.socketpair()
    ours.sendall(b"local\n")
    receiving_moves._places.acquire()
    server = threading.Thread(target=receiving_moves._serve, args=(theirs, "two"))
    server.start()
    with (
        closing(Link(ours)) as link,
        pytest.raises(MoveRefused, match="than any file of Post") as no,
    ):
        send_branch(link, BRANCH, SentBlocks())
    assert "remove the files of the branch" in str(no.value)
    server.join(4)
    assert not server.is_alive()


def test_a_sender_learns_what_it_has_sent_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(link: Link, sender: str, host_id: str) -> None:
        raise LinkBroken("the other host has sent a file of no size")

    monkeypatch.setattr(receiving_moves, "_answer", answer)
    monkeypatch.setattr(receiving_moves, "close_old_connections", lambda: None)
    monkeypatch.setattr(links_module, "LAST_TIMEOUT", 0.1)
    ours, theirs = socket.socketpair()
    ours.sendall(b"local\n" + bytes(100))
    receiving_moves._places.acquire()
    receiving_moves._serve(theirs, "two")
    with closing(Link(ours)) as link, pytest.raises(MoveInterrupted, match="a file of no size"):
        link.receive()
