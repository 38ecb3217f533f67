"""The copy of a running compute on the host that it moves to: how its log is written there, and
what is noticed of the standby that replays it."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.compute import compute
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.accounts import Account, account_of, set_owner
from controlplane.compute.host.patience import OutOfPatience
from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.processes.recovery import STANDBY
from controlplane.fleet.messages import Link
from controlplane.fleet.moving import following
from controlplane.fleet.moving.following import Follower, NotFollowed
from tests.controlplane.local_compute import BRANCH, SPEC, branch, computes
from tests.support.own_compute import postmaster_of
from tests.support.waiting import wait_for

__all__ = ["branch", "computes"]

COPY = "br-quiet-heron-copied"
SEGMENT = "0000000100000000000000FF"
NEVER = 1 << 60
PIECE = 4096


@pytest.fixture
def follower(branch: Path) -> Iterator[Follower]:
    """Follows a copy of the running branch. Its standby has not been started."""
    compute.start(SPEC)
    branch_data.create_from_parent(COPY, BRANCH)
    account = account_of(branch_dir(COPY))
    signal = data_dir(COPY) / STANDBY
    signal.touch()
    set_owner(signal, account)
    with closing(Follower(COPY, branch_dir(COPY), account)) as made:
        yield made
    compute.remove(COPY)


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    """Both ends of a connection."""
    ours, theirs = socket.socketpair()
    with closing(Link(ours)) as one, closing(Link(theirs)) as other:
        yield one, other


def test_a_segment_has_its_name_only_once_the_standby_may_read_it(
    follower: Follower, links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = links
    place = data_dir(COPY) / "pg_wal" / SEGMENT
    given: list[Account] = []

    def give_unseen(file: Path | int, account: Account) -> None:
        assert not place.exists()
        set_owner(file, account)
        given.append(account)

    monkeypatch.setattr(following, "set_owner", give_unseen)
    for at in (0, PIECE):
        there.send_bytes(b"x" * PIECE)
        there.flush()
        follower.receive_log(here, SEGMENT, at, PIECE)
    found = place.stat()
    assert (found.st_size, given) == (SEGMENT_SIZE, [account_of(branch_dir(COPY))])
    assert found.st_uid == (given[0].uid if os.geteuid() == 0 else os.geteuid())
    assert place.read_bytes() == (b"x" * 2 * PIECE).ljust(SEGMENT_SIZE, b"\0")


def test_a_standby_that_has_ended_is_noticed_at_once(follower: Follower) -> None:
    follower.start({})
    wait_for(lambda: follower.replayed() > 0, "the standby to answer")
    postmaster_of(COPY).kill()
    began = time.monotonic()
    for ask in (follower.replayed, follower.write_checkpoint, lambda: follower.finish(1, NEVER)):
        with pytest.raises(NotFollowed, match="has ended"):
            ask()
    assert time.monotonic() - began < 5


def test_a_standby_that_gets_no_farther_is_waited_for_within_bounds(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REPLAY_TIMEOUT", 0.2)
    follower.start({})
    with pytest.raises(OutOfPatience):
        follower.finish(1, NEVER)
