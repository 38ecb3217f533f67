"""Limits how many sessions each account opens in computes at once. Each costs the host a process of
Postgres, so an account's many clients would otherwise take the processor from the others."""

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

# In each process of the proxy.
MAX_OPENING_SESSIONS = 4
# Seconds after which a session no longer counts: its compute is slow or hangs, and must not keep
# the account's clients from other computes.
COUNTS_FOR = 0.25


class OpeningSessions:
    """Must be used within one event loop."""

    def __init__(self) -> None:
        self._by_account: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def counted(self, account_id: int) -> AsyncIterator[None]:
        """Waits until the account may open another session, and counts the block as its opening."""
        places = self._by_account.setdefault(account_id, asyncio.Semaphore(MAX_OPENING_SESSIONS))
        await places.acquire()
        release_once = functools.cache(places.release)
        expiry = asyncio.get_running_loop().call_later(COUNTS_FOR, release_once)
        try:
            yield
        finally:
            expiry.cancel()
            release_once()
