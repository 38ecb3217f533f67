"""Changes of endpoints that the database reports."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from controlplane.proxy.directory.changes import ChangeListener
from controlplane.proxy.directory.control_database import ControlDatabase


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


def test_an_endpoint_that_changes_all_the_time_delays_no_other() -> None:
    seen: list[str] = []

    class Cache:
        def invalidate(self, endpoint_id: str) -> None:
            seen.append(f"invalidated {endpoint_id}")

        def resume(self) -> None: ...

        suspend = resume

    async def connect() -> Connection:
        return Connection()

    async def go() -> None:
        database = cast(ControlDatabase, SimpleNamespace(connect=connect))
        listener = ChangeListener(database, [cast(Any, Cache())])
        checked = asyncio.Event()

        async def check(endpoint_id: str, _: object) -> None:
            seen.append(f"checked {endpoint_id}")
            if seen.count("checked ep-other") == 2:
                checked.set()

        listener._check = check  # type: ignore[method-assign,assignment]
        for endpoint_id in ("ep-busy", "ep-other"):
            listener.note_branch(endpoint_id, "br-1")
        running = asyncio.create_task(listener.run(cast(Any, None)))
        await asyncio.wait_for(checked.wait(), 10)
        running.cancel()

    asyncio.run(go())
    # The first checks are those of the beginning.
    changed = ["ep-busy", "ep-other"]
    assert seen[2:] == [f"{what} {one}" for what in ("invalidated", "checked") for one in changed]
