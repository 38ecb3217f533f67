"""The parallel API calls of one page."""

import threading

import pytest

from console.api.errors import Unreachable
from console.api.parallel import each_or_none, in_parallel


def test_it_works() -> None:
    both = threading.Barrier(2, timeout=10)
    assert sorted(in_parallel(both.wait, both.wait)) == [0, 1]
    assert each_or_none(lambda number: number * 2, [1, 2, 3]) == [2, 4, 6]
    assert each_or_none(lambda number: number, []) == []


def test_pages_that_wait_do_not_delay_others() -> None:
    """Anybody can cause such pages by signing in at a server that does not answer."""
    may_answer = threading.Event()

    def page() -> None:
        in_parallel(*[lambda: may_answer.wait(30)] * 5)

    waiting = [threading.Thread(target=page) for _ in range(10)]
    for each in waiting:
        each.start()
    answered = threading.Thread(target=in_parallel, args=[lambda: 1, lambda: 2], daemon=True)
    answered.start()
    answered.join(10)
    was_held_up = answered.is_alive()
    may_answer.set()
    for each in waiting:
        each.join()
    assert not was_held_up


def test_a_failure_is_raised_without_waiting_for_the_other_calls() -> None:
    may_answer = threading.Event()

    def fail() -> None:
        raise Unreachable("No connection.")

    with pytest.raises(Unreachable):
        in_parallel(fail, lambda: may_answer.wait(30))
    assert not may_answer.is_set()
    may_answer.set()
