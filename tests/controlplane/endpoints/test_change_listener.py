"""Changes of endpoints that the database reports."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from controlplane.proxy.directory.changes import ChangeListener
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.fair_queue import FairQueue
from controlplane.proxy.wire.errors import ControlPlaneUnavailable


class Connection:
    """Reports many changes of two endpoints at once, and then none."""

    def __init__(self) -> None:
        self.arrived = ["ep-busy"] * 500 + ["ep-other"]

    async def notifies(self, **_: float) -> AsyncIterator[Any]:
        arrived, self.arrived = self.arrived, []
        if not arrived:
            await asyncio.sleep(3600)
        for endpoint_id in arrived:
            yield SimpleNamespace(payload=endpoint_id)

    async def execute(self, *_: object) -> None: ...

    async def close(self) -> None: ...


class Cache:
    """Writes down what happens."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def invalidate(self, endpoint_id: str) -> None:
        self.seen.append(f"invalidated {endpoint_id}")

    def resume(self) -> None: ...

    suspend = resume


async def listening(cache: Cache) -> ChangeListener:
    async def connect() -> Connection:
        return Connection()

    database = cast(ControlDatabase, SimpleNamespace(connect=connect))
    return ChangeListener(database, [cast(Any, cache)])


def test_an_endpoint_that_changes_all_the_time_delays_no_other() -> None:
    cache = Cache()

    async def go() -> None:
        listener, checked = await listening(cache), asyncio.Event()

        async def check(endpoint_id: str, _: object) -> None:
            cache.seen.append(f"checked {endpoint_id}")
            if endpoint_id == "ep-other":
                checked.set()

        listener._check = check  # type: ignore[method-assign,assignment]
        for endpoint_id in ("ep-busy", "ep-other"):
            listener.note_branch(endpoint_id, "br-1", "account")
        running = asyncio.create_task(listener.run(cast(Any, None)))
        await asyncio.wait_for(checked.wait(), 10)
        running.cancel()

    asyncio.run(go())
    changed = ["ep-busy", "ep-other"]
    assert cache.seen == [f"{what} {one}" for what in ("invalidated", "checked") for one in changed]


def test_checks_that_hang_delay_no_notification() -> None:
    """What a change has made untrue must not be served while other endpoints' clients are
    checked."""
    cache = Cache()

    async def go() -> None:
        listener = await listening(cache)

        async def hang(*_: object) -> None:
            await asyncio.sleep(3600)

        listener._check = hang  # type: ignore[method-assign,assignment]
        listener.note_branch("ep-busy", "br-1", "account")
        running = asyncio.create_task(listener.run(cast(Any, None)))
        async with asyncio.timeout(10):
            while "invalidated ep-other" not in cache.seen:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(go())


def test_a_check_that_the_database_does_not_answer_is_made_again() -> None:
    async def go() -> None:
        listener, checks, done = await listening(Cache()), [], asyncio.Event()

        async def check(endpoint_id: str, _: object) -> None:
            checks.append(endpoint_id)
            if len(checks) == 1:
                raise ControlPlaneUnavailable
            done.set()

        listener._check = check  # type: ignore[method-assign,assignment]
        listener.note_branch("ep-busy", "br-1", "account")
        running = asyncio.create_task(listener.run(cast(Any, None)))
        await asyncio.wait_for(done.wait(), 10)
        running.cancel()
        assert checks == ["ep-busy"] * 2

    asyncio.run(go())


def test_an_account_with_many_endpoints_leaves_turns_to_others() -> None:
    async def go() -> None:
        queue = FairQueue()
        for number in range(1000):
            queue.put(f"ep-{number}", "large")
        queue.put("ep-0", "large")
        queue.put("ep-other", "small")
        assert [await queue.take() for _ in range(3)] == ["ep-0", "ep-other", "ep-1"]
        assert len({await queue.take() for _ in range(998)}) == 998
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.put("ep-late", "small")
        assert await waiting == "ep-late"

    asyncio.run(go())
