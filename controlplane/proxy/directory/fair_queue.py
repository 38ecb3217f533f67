"""A queue of endpoints that gives each account its turn."""

import asyncio


class FairQueue:
    """Each endpoint is in it once. Must be used within one event loop, and read by one task."""

    def __init__(self) -> None:
        # The endpoints of each account, and the accounts, in the order of their turns.
        self._by_account: dict[str, dict[str, None]] = {}
        self._has_any = asyncio.Event()

    def put(self, endpoint_id: str, account_id: str) -> None:
        self._by_account.setdefault(account_id, {})[endpoint_id] = None
        self._has_any.set()

    async def take(self) -> str:
        """Waits for an endpoint, and takes it out."""
        await self._has_any.wait()
        account_id = next(iter(self._by_account))
        endpoints = self._by_account.pop(account_id)
        endpoint_id = next(iter(endpoints))
        del endpoints[endpoint_id]
        if endpoints:
            self._by_account[account_id] = endpoints
        elif not self._by_account:
            self._has_any.clear()
        return endpoint_id
