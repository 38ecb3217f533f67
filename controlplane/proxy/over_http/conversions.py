"""Converts requests and answers between JSON and the Postgres protocol: small ones on the event
loop, others in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from controlplane.proxy.over_http.request import SMALL_BODY_BYTES

Converted = TypeVar("Converted")

# Converting more bytes may take seconds.
_MUCH_BYTES = 1 << 20


class Conversions:
    """For one process; must be used within its event loop.

    An account's conversions wait for each other, so that those of other accounts wait for only one
    of them.
    """

    def __init__(self) -> None:
        # For large requests and answers, and those so large that others must not wait for them. One
        # thread each, because they share a core with all relays of this process.
        self._large, self._very_large = (
            ThreadPoolExecutor(1, thread_name_prefix="converting") for _ in range(2)
        )
        self._turns: WeakValueDictionary[tuple[int, ThreadPoolExecutor], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def close(self) -> None:
        for thread in (self._large, self._very_large):
            thread.shutdown(wait=False, cancel_futures=True)

    async def convert(
        self, account_id: int, size: int, function: Callable[[], Converted]
    ) -> Converted:
        """Returns what the function, which converts so many bytes for the account, returns. Raises
        what it raises."""
        if size <= SMALL_BODY_BYTES:
            return function()
        thread = self._large if size <= _MUCH_BYTES else self._very_large
        turn = self._turns.setdefault((account_id, thread), asyncio.Lock())
        await turn.acquire()
        converting = asyncio.get_running_loop().run_in_executor(thread, function)
        # Not before the thread is free, even if nobody waits any more.
        converting.add_done_callback(lambda _: turn.release())
        return await asyncio.shield(converting)
