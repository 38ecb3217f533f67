"""What is asked of a compute for clients that log in, one question at a time."""

import asyncio
from typing import Any

import pytest

from controlplane.proxy.directory.compute_logins import _CatalogSession
from controlplane.proxy.wire.errors import LoginUnknown


class SlowLine(_CatalogSession):
    """Its answers are numbers, one higher each time, and come when they are let go."""

    def __init__(self) -> None:
        super().__init__("ep-calm-river-000001", "br-1", 0.0)
        self.put: list[object] = []
        self.may_answer = asyncio.Semaphore(0)

    async def _execute(self, *question: Any) -> int:
        number = len(self.put)
        self.put.append(question[1])
        await self.may_answer.acquire()
        return number

    def login(self, role: str) -> "asyncio.Task[int]":
        return asyncio.ensure_future(self.ask("SELECT %s", (role,), None, within=5.0))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_clients_that_wait_share_a_question_that_is_not_put_yet() -> None:
    async def go() -> None:
        line = SlowLine()
        under_way = line.login("alice")
        await turns()
        # The one under way may have been answered before these came.
        waiting = [line.login("alice") for _ in range(5)]
        other = line.login("bob")
        await turns()
        waiting.append(line.login("alice"))
        for _ in range(3):
            line.may_answer.release()
        assert await under_way == 0
        assert [await one for one in waiting] == [1] * 6
        assert await other == 2
        assert line.put == [("alice",), ("alice",), ("bob",)]

    asyncio.run(go())


def test_a_question_that_fails_is_put_again_for_the_next() -> None:
    class DeadLine(SlowLine):
        async def _execute(self, *question: Any) -> int:
            self.put.append(question[1])
            raise OSError

    async def go() -> None:
        line = DeadLine()
        for _ in range(2):
            with pytest.raises(LoginUnknown):
                await line.login("alice")
        assert len(line.put) == 2

    asyncio.run(go())
