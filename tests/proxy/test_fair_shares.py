"""How much work one account may have in progress in the proxy, alone and beside others."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from controlplane.proxy.limits import fair_shares as module
from controlplane.proxy.limits.fair_shares import ALONE, BESIDE_OTHERS, FairShares
from controlplane.proxy.limits.shared_counts import SharedCounts

ONE, OTHER = 1, 2


class Work:
    """Pieces of work that last until they are ended."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self.under_way = {ONE: 0, OTHER: 0}
        self.most = {ONE: 0, OTHER: 0}
        self.tasks: list[asyncio.Task[None]] = []
        self.ends = asyncio.Event()

    def begin(self, account: int, pieces: int) -> None:
        self.tasks += [asyncio.create_task(self._piece(account)) for _ in range(pieces)]

    async def _piece(self, account: int) -> None:
        async with self._shares.share(account):
            self.under_way[account] += 1
            self.most[account] = max(self.most[account], self.under_way[account])
            try:
                await self.ends.wait()
            finally:
                self.under_way[account] -= 1

    async def finish(self) -> None:
        self.ends.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces count for as long as they last, and keep accounts in the table."""
    monkeypatch.setattr(module, "COUNTS_FOR", 1000.0)
    monkeypatch.setattr(module, "PRESENT_FOR", 1000.0)


def test_beside_another_an_account_has_a_smaller_share() -> None:
    async def scene() -> None:
        work = Work(FairShares(asyncio.get_running_loop()))
        work.begin(ONE, 2 * ALONE)
        await settle()
        assert work.under_way == {ONE: ALONE, OTHER: 0}
        work.begin(OTHER, 2 * ALONE)
        await settle()
        assert work.under_way == {ONE: ALONE, OTHER: BESIDE_OTHERS}
        await work.finish()

    run(scene)


def test_waiting_pieces_begin_as_others_end() -> None:
    async def scene() -> None:
        work = Work(FairShares(asyncio.get_running_loop()))
        work.begin(OTHER, 1)
        await settle()
        work.begin(ONE, 50)
        await settle()
        assert work.under_way[ONE] == BESIDE_OTHERS
        await work.finish()
        assert work.most[ONE] == BESIDE_OTHERS

    run(scene)


def test_another_process_reports_the_presence_of_another_account() -> None:
    async def scene() -> None:
        loop, counts = asyncio.get_running_loop(), SharedCounts()
        here, there = (FairShares(loop, counts.of(number)) for number in range(2))
        elsewhere, work = Work(there), Work(here)
        elsewhere.begin(ONE, 1)
        await settle()
        work.begin(ONE, 50)
        await settle()
        assert work.under_way[ONE] == ALONE
        elsewhere.begin(OTHER, 1)
        await settle()
        for task in work.tasks[:ALONE]:
            task.cancel()
        await settle()
        assert work.under_way[ONE] == BESIDE_OTHERS
        await elsewhere.finish()
        work.ends.set()
        await asyncio.gather(*work.tasks, return_exceptions=True)

    run(scene)


def test_a_long_piece_stops_counting_and_an_account_without_work_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COUNTS_FOR", 0.01)
    monkeypatch.setattr(module, "PRESENT_FOR", 0.01)

    async def scene() -> None:
        work = Work(FairShares(asyncio.get_running_loop()))
        work.begin(ONE, 1)
        work.begin(OTHER, 5 * BESIDE_OTHERS)
        async with asyncio.timeout(10):
            while work.under_way[OTHER] < 5 * BESIDE_OTHERS:
                await asyncio.sleep(0.001)
        await work.finish()
        async with asyncio.timeout(10):
            while work._shares._accounts:
                await asyncio.sleep(0.001)

    run(scene)


def test_a_cancelled_wait_uses_no_share() -> None:
    async def scene() -> None:
        work = Work(FairShares(asyncio.get_running_loop()))
        work.begin(ONE, 1 + ALONE)
        await settle()
        work.tasks.pop().cancel()
        work.begin(ONE, 1)
        await settle()
        # A turn that is given at the moment of the cancellation passes to the next.
        work.tasks[0].cancel()
        with suppress(asyncio.CancelledError):
            await work.tasks.pop(0)
        await settle()
        assert work.under_way[ONE] == ALONE
        await work.finish()

    run(scene)
