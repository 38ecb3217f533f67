"""How many sessions in computes an account opens at once in a proxy process."""

import asyncio

import pytest

from controlplane.proxy.limits import connection_limits
from controlplane.proxy.limits.connection_limits import MAX_OPENING_SESSIONS, OpeningSessions

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
