"""What the proxy keeps of endpoints, and when it may use it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controlplane.proxy.errors import ControlPlaneSilent
from controlplane.proxy.memory import Memory

ENDPOINT = "ep-calm-river-000001"


class Known:
    """A memory of numbers; what it asks gives one higher each time, or fails while `is_silent`."""

    def __init__(self) -> None:
        self.is_silent = False
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.memory: Memory[int] = Memory(is_silent=lambda: self.is_silent)

    async def ask(self) -> int:
        self.asked += 1
        if self.is_silent:
            raise ControlPlaneSilent
        answer = self.asked
        await asyncio.sleep(0)
        self.meanwhile()
        return answer

    def read(self) -> Awaitable[int]:
        return self.memory.read(ENDPOINT, "alice", self.ask, lasts=lambda number: number > 0)


def test_what_is_known_is_kept_until_it_changes() -> None:
    async def go() -> None:
        known = Known()
        known.memory.begin()
        assert [await known.read(), await known.read()] == [1, 1]
        known.memory.forget(ENDPOINT)
        assert [await known.read(), await known.read()] == [2, 2]

    asyncio.run(go())


@pytest.mark.parametrize("event", ["forget", "end", "begin"])
def test_an_answer_that_a_change_has_overtaken_is_not_kept(event: str) -> None:
    async def go() -> None:
        known = Known()
        memory = known.memory
        memory.begin()
        happens = {"forget": lambda: memory.forget(ENDPOINT), "end": memory.end}
        known.meanwhile = happens.get(event, memory.begin)
        assert await known.read() == 1
        known.meanwhile = lambda: None
        assert await known.read() == 2

    asyncio.run(go())


def test_nothing_is_kept_while_changes_go_unheard() -> None:
    async def go() -> None:
        known = Known()
        assert [await known.read(), await known.read()] == [1, 2]

    asyncio.run(go())


def test_what_was_known_serves_while_the_database_is_silent() -> None:
    async def go() -> None:
        known = Known()
        known.memory.begin()
        assert await known.read() == 1
        known.memory.end()
        # It answers: then what it says is what counts.
        assert await known.read() == 2
        known.is_silent = True
        assert [await known.read() for _ in range(3)] == [1, 1, 1]
        assert known.asked == 2
        known.is_silent = False
        known.memory.begin()
        assert await known.read() == 3

    asyncio.run(go())


def test_what_was_never_known_is_refused_while_the_database_is_silent() -> None:
    async def go() -> None:
        known = Known()
        known.is_silent = True
        with pytest.raises(ControlPlaneSilent):
            await known.read()

    asyncio.run(go())
