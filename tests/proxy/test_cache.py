"""What the proxy keeps of endpoints, and when it may use it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controlplane.proxy.directory import cache
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.wire.errors import ControlPlaneSilent

ENDPOINT = "ep-calm-river-000001"


class Known:
    """A memory of numbers; what it asks gives one higher each time, or fails while `is_silent`."""

    def __init__(self) -> None:
        self.is_silent = False
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.memory: EndpointCache[int] = EndpointCache(is_silent=lambda: self.is_silent)

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


class Strangers(Known):
    """Of what it asks, nothing lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = EndpointCache(is_silent=lambda: self.is_silent, keeps_passing=True)

    def read(self, name: str = "mallory") -> Awaitable[int]:
        return self.memory.read(ENDPOINT, name, self.ask, lasts=lambda _: False)


def test_a_name_that_nobody_has_is_known_too_until_it_changes() -> None:
    async def go() -> None:
        strangers = Strangers()
        strangers.memory.begin()
        assert not strangers.memory.knows(ENDPOINT, "mallory")
        assert [await strangers.read(), await strangers.read()] == [1, 1]
        assert strangers.memory.knows(ENDPOINT, "mallory")
        strangers.memory.forget(ENDPOINT)
        assert await strangers.read() == 2

    asyncio.run(go())


def test_a_name_that_nobody_had_is_not_served_while_changes_go_unheard() -> None:
    async def go() -> None:
        strangers = Strangers()
        strangers.memory.begin()
        await strangers.read()
        strangers.memory.end()
        strangers.is_silent = True
        with pytest.raises(ControlPlaneSilent):
            await strangers.read()

    asyncio.run(go())


def test_any_number_of_unknown_names_takes_nothing_from_those_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "_MOST_PASSING", 3)

    async def go() -> None:
        strangers = Strangers()
        kept = strangers.memory
        kept.begin()
        await kept.read(ENDPOINT, "alice", strangers.ask, lasts=lambda _: True)
        for number in range(10):
            await kept.read(f"ep-{number}", "mallory", strangers.ask, lasts=lambda _: False)
        assert kept.knows(ENDPOINT, "alice")
        assert [kept.knows(f"ep-{number}", "mallory") for number in (6, 7, 9)] == [
            False,
            True,
            True,
        ]
        # No role has a name of this length, and many would fill the memory.
        await strangers.read("m" * 64)
        assert not kept.knows(ENDPOINT, "m" * 64)

    asyncio.run(go())
