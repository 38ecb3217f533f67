"""Starts take turns: so many at once, in order, and none waits long for a start that hangs."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from controlplane.compute import turns
from controlplane.compute.patience import Cancelled, patience
from controlplane.compute.turns import Turns
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns long, so that none ends by itself even on a slow machine."""
    monkeypatch.setattr(turns, "LONGEST_TURN", 60.0)


class Crowd:
    """Threads that each want a turn, by name. Each keeps its turn until a test ends it."""

    def __init__(self, threads: ThreadPoolExecutor, most: int) -> None:
        self._threads = threads
        self._turns = Turns(most)
        self._done: dict[str, threading.Event] = {}
        self.had: list[str] = []
        self.waiting = 0

    def comes(self, name: str, *, cancelled: threading.Event | None = None) -> "Future[None]":
        """Return once this thread waits behind those that came before."""
        self._done[name] = threading.Event()
        before = self.waiting + len(self.had)
        future = self._threads.submit(self._take, name, cancelled or threading.Event())
        wait_for(lambda: self.waiting + len(self.had) > before, f"{name} to come")
        return future

    def ends(self, name: str) -> None:
        self._done[name].set()

    def has_had(self, *names: str) -> Callable[[], bool]:
        return lambda: self.had == list(names)

    def _take(self, name: str, cancelled: threading.Event) -> None:
        with patience(60, cancelled=cancelled):
            self.waiting += 1
            try:
                taken = self._turns.taken()
                taken.__enter__()
            finally:
                self.waiting -= 1
            self.had.append(name)
            self._done[name].wait(60)
            taken.__exit__(None, None, None)


@pytest.fixture
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


def test_so_many_at_once_in_order(threads: ThreadPoolExecutor) -> None:
    crowd = Crowd(threads, 2)
    for name in "abcd":
        crowd.comes(name)
    time.sleep(0.1)
    assert crowd.had == ["a", "b"]
    crowd.ends("b")
    wait_for(crowd.has_had("a", "b", "c"), "the next one's turn")
    crowd.ends("a")
    wait_for(crowd.has_had("a", "b", "c", "d"), "the last one's turn")
    crowd.ends("c")
    crowd.ends("d")


def test_a_start_that_hangs_delays_the_others_only_shortly(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LONGEST_TURN", 0.3)
    crowd = Crowd(threads, 2)
    began = time.monotonic()
    for name in "abcd":
        crowd.comes(name)
    wait_for(crowd.has_had("a", "b", "c", "d"), "the others")
    assert time.monotonic() - began >= 0.3
    for name in "abcd":
        crowd.ends(name)


def test_a_cancelled_start_stops_waiting_and_delays_nobody(threads: ThreadPoolExecutor) -> None:
    crowd, cancelled = Crowd(threads, 1), threading.Event()
    crowd.comes("a")
    given_up = crowd.comes("b", cancelled=cancelled)
    crowd.comes("c")
    cancelled.set()
    with pytest.raises(Cancelled):
        given_up.result(5)
    crowd.ends("a")
    wait_for(crowd.has_had("a", "c"), "the next one's turn")
    crowd.ends("c")


def test_a_failed_start_ends_its_turn() -> None:
    one = Turns(1)
    with suppress(ValueError), one.taken():
        raise ValueError
    with one.taken():
        pass
