"""When clients that name an unknown endpoint or role get their answer, and how many sessions in
computes an account opens at once in a proxy process."""

import asyncio
import time

import pytest
import uvloop

from controlplane.proxy.limits import connection_limits
from controlplane.proxy.limits.connection_limits import MAX_OPENING_SESSIONS, OpeningSessions
from controlplane.proxy.limits.pending_clients import LookupTimes, answer_due


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lookups_of(clock: Clock, seconds: list[float]) -> LookupTimes:
    lookups = LookupTimes(clock)
    for took in seconds:
        with lookups.timing():
            clock.now += took
    return lookups


@pytest.mark.parametrize(
    ("seconds", "usual"),
    [
        ([], 0.0),
        # The first lookup is slow, which says nothing about the others.
        ([0.5, 0.001], 0.0),
        ([0.5, 0.4, 0.003], 0.003),
        ([0.002] * 90 + [0.5] * 10, 0.002),
        ([0.002] * 89 + [0.5] * 11, 0.5),
        # Lookups before the last hundred do not count.
        ([0.5] * 100 + [0.002] * 100, 0.002),
    ],
)
def test_the_usual_time_of_a_lookup(seconds: list[float], usual: float) -> None:
    assert lookups_of(Clock(), seconds).usual == pytest.approx(usual)


def test_former_slow_lookups_delay_no_answer() -> None:
    clock = Clock()
    lookups = lookups_of(clock, [0.5] * 20)
    assert lookups.usual == pytest.approx(0.5)
    clock.now += 61
    assert lookups.usual == 0.0


@pytest.mark.parametrize(
    ("lookup", "least", "most"), [(0.0, 0.001, 0.01), (0.005, 0.005, 0.015), (5.0, 0.02, 0.04)]
)
def test_an_answer_is_due_after_the_usual_time_of_lookups_within_bounds(
    lookup: float, least: float, most: float
) -> None:
    async def wait() -> float:
        began = time.perf_counter()
        await answer_due(asyncio.get_running_loop(), lookup)
        return time.perf_counter() - began

    async def several() -> list[float]:
        return [await wait() for _ in range(5)]

    times = uvloop.run(several())
    assert least <= min(times) <= most


ONE, OTHER = 1, 2


@pytest.mark.parametrize("hangs", [False, True])
def test_further_sessions_of_an_account_wait_for_its_own_unless_these_hang(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(connection_limits, "COUNTS_FOR", 0.01 if hangs else 1000.0)

    async def scene() -> None:
        opening, ends = OpeningSessions(), asyncio.Event()
        begun: list[int] = []

        async def open_one(account_id: int) -> None:
            async with opening.counted(account_id):
                begun.append(account_id)
                await ends.wait()

        wanted = [ONE] * 3 * MAX_OPENING_SESSIONS + [OTHER]
        tasks = [asyncio.create_task(open_one(account)) for account in wanted]
        await asyncio.sleep(0)
        assert begun == [ONE] * MAX_OPENING_SESSIONS + [OTHER]
        if not hangs:
            ends.set()
        async with asyncio.timeout(10):
            while len(begun) < len(wanted):
                await asyncio.sleep(0.001)
        ends.set()
        await asyncio.gather(*tasks)

    asyncio.run(scene())
