"""What the proxy keeps of endpoints, and when it may use it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controlplane.proxy.directory import cache
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

ENDPOINT = "ep-calm-river-000001"


class Known:
    """A cache of numbers; what it asks gives one higher each time, or fails if `is_unavailable`."""

    def __init__(self) -> None:
        self.is_unavailable = False
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.cache: EndpointCache[int] = EndpointCache(is_unavailable=lambda: self.is_unavailable)

    async def ask(self) -> int:
        self.asked += 1
        if self.is_unavailable:
            raise ControlPlaneUnavailable
        answer = self.asked
        await asyncio.sleep(0)
        self.meanwhile()
        return answer

    def read(self) -> Awaitable[int]:
        return self.cache.read(ENDPOINT, "alice", self.ask, is_permanent=lambda number: number > 0)


def test_what_is_known_is_kept_until_it_changes() -> None:
    async def go() -> None:
        known = Known()
        known.cache.resume()
        assert [await known.read(), await known.read()] == [1, 1]
        known.cache.invalidate(ENDPOINT)
        assert [await known.read(), await known.read()] == [2, 2]

    asyncio.run(go())


@pytest.mark.parametrize("event", ["invalidate", "suspend", "resume"])
def test_an_answer_that_a_change_has_overtaken_is_not_kept(event: str) -> None:
    async def go() -> None:
        known = Known()
        cache = known.cache
        cache.resume()
        happens = {"invalidate": lambda: cache.invalidate(ENDPOINT), "suspend": cache.suspend}
        known.meanwhile = happens.get(event, cache.resume)
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
        known.cache.resume()
        assert await known.read() == 1
        known.cache.suspend()
        # It answers: then what it says is what counts.
        assert await known.read() == 2
        known.is_unavailable = True
        assert [await known.read() for _ in range(3)] == [1, 1, 1]
        assert known.asked == 2
        known.is_unavailable = False
        known.cache.resume()
        assert await known.read() == 3

    asyncio.run(go())


def test_what_was_never_known_is_refused_while_the_database_is_silent() -> None:
    async def go() -> None:
        known = Known()
        known.is_unavailable = True
        with pytest.raises(ControlPlaneUnavailable):
            await known.read()

    asyncio.run(go())


class Strangers(Known):
    """Of what it asks, nothing lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EndpointCache(is_unavailable=lambda: self.is_unavailable, keeps_temporary=True)

    def read(self, name: str = "mallory") -> Awaitable[int]:
        return self.cache.read(ENDPOINT, name, self.ask, is_permanent=lambda _: False)


def test_a_name_that_nobody_has_is_known_too_until_it_changes() -> None:
    async def go() -> None:
        strangers = Strangers()
        strangers.cache.resume()
        assert not strangers.cache.knows(ENDPOINT, "mallory")
        assert [await strangers.read(), await strangers.read()] == [1, 1]
        assert strangers.cache.knows(ENDPOINT, "mallory")
        strangers.cache.invalidate(ENDPOINT)
        assert await strangers.read() == 2

    asyncio.run(go())


def test_a_name_that_nobody_had_is_not_served_while_changes_go_unheard() -> None:
    async def go() -> None:
        strangers = Strangers()
        strangers.cache.resume()
        await strangers.read()
        strangers.cache.suspend()
        strangers.is_unavailable = True
        with pytest.raises(ControlPlaneUnavailable):
            await strangers.read()

    asyncio.run(go())


def test_any_number_of_unknown_names_takes_nothing_from_those_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "_MOST_TEMPORARY", 3)

    async def go() -> None:
        strangers = Strangers()
        kept = strangers.cache
        kept.resume()
        await kept.read(ENDPOINT, "alice", strangers.ask, is_permanent=lambda _: True)
        for number in range(10):
            await kept.read(f"ep-{number}", "mallory", strangers.ask, is_permanent=lambda _: False)
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
