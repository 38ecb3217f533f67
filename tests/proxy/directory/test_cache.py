"""What the proxy caches about endpoints, and when it may use it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controlplane.proxy.directory import cache
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

ENDPOINT = "ep-calm-river-000001"


class Known:
    """A cache of numbers. Each read gives a higher one, or fails if `is_unavailable`."""

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


def test_a_value_is_cached_until_it_changes() -> None:
    async def go() -> None:
        known = Known()
        known.cache.resume()
        assert [await known.read(), await known.read()] == [1, 1]
        known.cache.invalidate(ENDPOINT)
        assert [await known.read(), await known.read()] == [2, 2]

    asyncio.run(go())


def test_an_entry_is_found_under_any_name_as_long_as_it_is_true() -> None:
    async def go() -> None:
        known = Known()
        known.cache.resume()
        with pytest.raises(LookupError):
            known.cache.any_of(ENDPOINT)
        changes: list[Callable[[], None]] = [
            lambda: known.cache.invalidate(ENDPOINT),
            known.cache.suspend,
        ]
        for change in changes:
            read = await known.read()
            assert known.cache.any_of(ENDPOINT) == read
            change()
            with pytest.raises(LookupError):
                known.cache.any_of(ENDPOINT)

    asyncio.run(go())


@pytest.mark.parametrize("event", ["invalidate", "suspend", "resume"])
def test_an_answer_from_before_a_change_is_not_cached(event: str) -> None:
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


def test_nothing_is_cached_while_changes_are_not_received() -> None:
    async def go() -> None:
        known = Known()
        assert [await known.read(), await known.read()] == [1, 2]

    asyncio.run(go())


def test_cached_values_are_used_while_the_database_does_not_answer() -> None:
    async def go() -> None:
        known = Known()
        known.cache.resume()
        assert await known.read() == 1
        known.cache.suspend()
        # Once it answers, its answer counts.
        assert await known.read() == 2
        known.is_unavailable = True
        assert [await known.read() for _ in range(3)] == [1, 1, 1]
        assert known.asked == 2
        known.is_unavailable = False
        known.cache.resume()
        assert await known.read() == 3

    asyncio.run(go())


def test_values_that_are_not_cached_are_refused_while_the_database_does_not_answer() -> None:
    async def go() -> None:
        known = Known()
        known.is_unavailable = True
        with pytest.raises(ControlPlaneUnavailable):
            await known.read()

    asyncio.run(go())


def knows(cache: EndpointCache[int], endpoint_id: str, name: str) -> bool:
    return cache._find(endpoint_id, name) is not None


class UnknownNames(Known):
    """A cache of names that do not exist."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EndpointCache(is_unavailable=lambda: self.is_unavailable, keeps_temporary=True)

    def read(self, name: str = "mallory") -> Awaitable[int]:
        return self.cache.read(ENDPOINT, name, self.ask, is_permanent=lambda _: False)


def test_an_unknown_name_is_cached_until_a_change() -> None:
    async def go() -> None:
        strangers = UnknownNames()
        strangers.cache.resume()
        assert not knows(strangers.cache, ENDPOINT, "mallory")
        assert [await strangers.read(), await strangers.read()] == [1, 1]
        assert knows(strangers.cache, ENDPOINT, "mallory")
        strangers.cache.invalidate(ENDPOINT)
        assert await strangers.read() == 2

    asyncio.run(go())


def test_an_unknown_name_is_not_served_while_changes_are_not_received() -> None:
    async def go() -> None:
        strangers = UnknownNames()
        strangers.cache.resume()
        await strangers.read()
        strangers.cache.suspend()
        strangers.is_unavailable = True
        with pytest.raises(ControlPlaneUnavailable):
            await strangers.read()

    asyncio.run(go())


def test_many_unknown_names_do_not_displace_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "_MAX_TEMPORARY", 3)

    async def go() -> None:
        strangers = UnknownNames()
        kept = strangers.cache
        kept.resume()
        await kept.read(ENDPOINT, "alice", strangers.ask, is_permanent=lambda _: True)
        for number in range(10):
            await kept.read(f"ep-{number}", "mallory", strangers.ask, is_permanent=lambda _: False)
        assert knows(kept, ENDPOINT, "alice")
        assert [knows(kept, f"ep-{number}", "mallory") for number in (6, 7, 9)] == [
            False,
            True,
            True,
        ]
        # No role has a name of this length, and many of them would fill the memory.
        await strangers.read("m" * 64)
        assert not knows(kept, ENDPOINT, "m" * 64)

    asyncio.run(go())
