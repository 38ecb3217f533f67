"""Which account's request computes next in a process of the API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest

from controlplane.api.turns import BESIDE_OTHERS, GRACE, HEAD_START, Turns

BURST = 0.003  # seconds
STATEMENTS = 4


class Clock:
    """A clock that advances only while a request computes, so that the host's speed has no
    effect."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.turns = Turns(self.clock)
        # The accounts of the bursts of computing, in order.
        self.bursts: list[str] = []

    def request(self, whose: str) -> None:
        with self.turns.request(whose):
            self.compute(whose)
            for _ in range(STATEMENTS):
                with self.turns.waiting():
                    gevent.sleep(0)
                self.compute(whose)

    def compute(self, whose: str) -> None:
        self.bursts.append(whose)
        self.clock.now += BURST

    def go_on(self, whose: str) -> None:
        while True:
            self.request(whose)
            gevent.sleep(0)


@contextmanager
def running(functions: list[Callable[[], None]]) -> Iterator[None]:
    greenlets = [gevent.spawn(function) for function in functions]
    try:
        yield
    finally:
        gevent.killall(greenlets)


def test_a_request_waits_for_at_most_one_burst_of_another_accounts_crowd() -> None:
    world = World()
    with running([lambda: world.go_on("crowd")] * 12), gevent.Timeout(10):
        while len(world.bursts) < 100:
            gevent.sleep(0)
        before = len(world.bursts)
        world.request("one")
    meanwhile = world.bursts[before:]
    assert meanwhile.count("crowd") <= 2, meanwhile


def test_two_crowds_get_equal_computing_time() -> None:
    world = World()
    many = [lambda: world.go_on("many")] * 12
    few = [lambda: world.go_on("few")] * 3
    with running(many + few), gevent.Timeout(10):
        while len(world.bursts) < 400:
            gevent.sleep(0)
    lead = HEAD_START / BURST
    assert abs(world.bursts.count("many") - world.bursts.count("few")) <= lead + 20


def test_a_request_that_waits_long_does_not_delay_others() -> None:
    world = World()
    answered = gevent.event.Event()

    def wait_unannounced() -> None:
        with world.turns.request("one"):
            answered.wait()

    def wait_for_the_database() -> None:
        with world.turns.request("other"), world.turns.waiting():
            answered.wait()

    with running([wait_unannounced, wait_for_the_database]), gevent.Timeout(10):
        gevent.sleep(0)
        crowd = gevent.spawn(world.request, "crowd")
        while not crowd.dead:
            # The simulated clock, which no computing advances here.
            world.clock.now += GRACE
            gevent.sleep(0.001)
        answered.set()
    assert world.bursts.count("crowd") == 1 + STATEMENTS


def test_beside_another_account_few_requests_of_one_are_begun() -> None:
    world = World()
    begun = {"crowd": 0, "one": 0}
    most = dict(begun)
    ends = gevent.event.Event()

    def go_on(whose: str) -> None:
        with world.turns.request(whose):
            begun[whose] += 1
            most[whose] = max(most[whose], begun[whose])
            with world.turns.waiting():
                ends.wait()
            begun[whose] -= 1

    with running([lambda: go_on("one")] + [lambda: go_on("crowd")] * 12), gevent.Timeout(10):
        while begun != {"crowd": BESIDE_OTHERS, "one": 1}:
            gevent.sleep(0.001)
        ends.set()
        while any(begun.values()) or most["crowd"] < BESIDE_OTHERS:
            gevent.sleep(0.001)
    assert most == {"crowd": BESIDE_OTHERS, "one": 1}


def test_all_requests_of_a_single_account_are_begun() -> None:
    world = World()
    begun: list[None] = []
    ends = gevent.event.Event()

    def go_on() -> None:
        with world.turns.request("one"):
            begun.append(None)
            with world.turns.waiting():
                ends.wait()

    with running([go_on] * 12), gevent.Timeout(10):
        while len(begun) < 12:
            gevent.sleep(0.001)
        ends.set()


def test_a_request_that_is_killed_while_it_waits_is_forgotten() -> None:
    world = World()
    with running([lambda: world.go_on("crowd")] * 3), gevent.Timeout(10):
        killed = gevent.spawn(world.request, "one")
        gevent.sleep(0)
        killed.kill()
        before = len(world.bursts)
        while len(world.bursts) < before + 20:
            gevent.sleep(0)


@pytest.mark.parametrize("whose", [["one"], ["one", "other"]])
def test_failed_requests_release_their_turn(whose: list[str]) -> None:
    world = World()

    def fail(account: str) -> None:
        with world.turns.request(account), world.turns.waiting():
            gevent.sleep(0)
            raise ZeroDivisionError

    with gevent.Timeout(10):
        for account in whose * 3:
            with pytest.raises(ZeroDivisionError):
                fail(account)
        world.request("one")
