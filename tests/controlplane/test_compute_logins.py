"""The questions that the proxy asks a compute when clients log in, one at a time."""

import asyncio
from typing import Any

import pytest

from controlplane.proxy.directory.compute_logins import _CatalogSession
from controlplane.proxy.wire.errors import LoginUnknown


class SlowLine(_CatalogSession):
    """A session whose answers are increasing numbers, each given when the test allows it."""

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


def test_waiting_clients_share_a_question_that_was_not_sent_yet() -> None:
    async def go() -> None:
        line = SlowLine()
        under_way = line.login("alice")
        await turns()
        # The question in progress may have been answered before these clients came.
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


def test_a_failed_question_is_asked_again_for_the_next_client() -> None:
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
