"""Places that accounts share. None needs a service."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from controlplane.api import event_streams
from controlplane.api.event_streams import ClientLeft, Places
from tests.support.waiting import wait_for


class Worker(threading.Thread):
    """Holds a place of the account from when it gets one until it is told to end."""

    def __init__(self, among: Places, account_id: int, has_left: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.among, self.account_id, self.has_left = among, account_id, has_left
        self.begun, self.told = threading.Event(), threading.Event()
        self.gave_up = False
        waiting = len(among._waiting)
        self.start()
        wait_for(lambda: self.begun.is_set() or len(among._waiting) > waiting, "it to ask")

    def run(self) -> None:
        try:
            with self.among.hold(self.account_id, has_left=self.has_left):
                self.begun.set()
                self.told.wait(60)
        except ClientLeft:
            self.gave_up = True

    def end(self) -> None:
        self.told.set()
        self.join(10)


@contextmanager
def working(
    among: Places, *account_ids: int, has_left: Callable[[], bool] = lambda: False
) -> Iterator[list[Worker]]:
    workers = [Worker(among, account_id, has_left) for account_id in account_ids]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def test_no_account_takes_all_places() -> None:
    with working(Places(4), 1, 1, 1, 1, 2, 2, 3, 4) as all_of_them:
        assert [one.begun.is_set() for one in all_of_them] == [
            True, True, False, False, True, False, True, False
        ]  # fmt: skip
        # The next place goes to the account that has none.
        all_of_them[0].end()
        assert all_of_them[-1].begun.wait(10)
        assert not all_of_them[2].begun.is_set()
    with working(Places(1), 1) as (only,):
        assert only.begun.is_set()


def test_those_of_one_account_get_places_in_order() -> None:
    with working(Places(2), 1, 1, 1) as (first, second, third):
        first.end()
        assert second.begun.wait(10)
        assert not third.begun.is_set()
        second.end()
        assert third.begun.wait(10)


def test_whoever_has_left_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "CHECK_INTERVAL", 0.01)
    among, over = Places(1), threading.Event()
    with working(among, 1) as (first,), working(among, 2, has_left=over.is_set) as (second,):
        over.set()
        second.join(10)
        assert second.gave_up
        first.end()
        with among.hold(3, has_left=lambda: True):
            pass
    assert (among._free, dict(among._held), among._waiting) == (1, {}, {})
