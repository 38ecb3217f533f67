"""Limits how many short pieces of work one account has under way at once: new sessions in computes,
and requests over HTTP. All accounts share the host's processors, and without a limit the account
that asks most would get most. With it, an account gets as much as each of the others.

Before a client has authenticated, its account is not certain. Then the pieces are counted for its
endpoint together with its address, so that clients from elsewhere cannot use up an endpoint's part.

A piece that lasts longer waits for something, or is work of the compute's own. From then on it no
longer counts, so slow work does not keep the same account, or another, from beginning more.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from controlplane.proxy.limits.shared_counts import OwnCounts

# Pieces in each process, for an account that is alone and for one beside others. There is about one
# process for each core.
ALONE, BESIDE_OTHERS = 16, 1
# Seconds: how long a piece counts at most, if it does not wait for its client and if it does; and
# how long an account counts as present after it last asked for one.
COUNTS_FOR, LOGIN_COUNTS_FOR, PRESENT_FOR = 0.25, 0.05, 1.0


@dataclass(eq=False, slots=True)
class _Account:
    under_way: int = 0
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)
    # When it last asked for a piece. Its timer ends its presence.
    last: float = 0.0
    has_timer: bool = False


class FairShares:
    """Must be used within one event loop. Limits pieces of one kind, each counted for at most
    `counts_for` seconds. `shared` is given if other processes have such pieces too."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        shared: OwnCounts | None = None,
        *,
        kind: str = "work",
        counts_for: float | None = None,
    ) -> None:
        self._loop = loop
        self._shared = shared
        self._kind = kind
        self._counts_for = COUNTS_FOR if counts_for is None else counts_for
        # The accounts that are present in this process.
        self._accounts: dict[Hashable, _Account] = {}

    @asynccontextmanager
    async def share(self, account_id: Hashable) -> AsyncIterator[None]:
        """Counts the block as a piece of the account's work. Waits until the account may begin
        one."""
        account = self._arrive(account_id)
        if account.waiting or account.under_way >= self._most(account_id):
            turn = self._loop.create_future()
            account.waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._end(account_id, account)
                raise
        else:
            account.under_way += 1
        counts = True

        def end() -> None:
            nonlocal counts
            if counts:
                counts = False
                self._end(account_id, account)

        expiry = self._loop.call_later(self._counts_for, end)
        try:
            yield
        finally:
            expiry.cancel()
            end()

    def _arrive(self, account_id: Hashable) -> _Account:
        account = self._accounts.get(account_id)
        if account is None:
            account = self._accounts[account_id] = _Account()
            self._note(account_id, 1)
        account.last = self._loop.time()
        if not account.has_timer:
            account.has_timer = True
            self._loop.call_later(PRESENT_FOR, self._expire, account_id, account)
        return account

    def _expire(self, account_id: Hashable, account: _Account) -> None:
        """Forgets the account if it has asked for nothing for a while. Otherwise starts its
        waiting pieces, because the other accounts may have gone."""
        left = account.last + PRESENT_FOR - self._loop.time()
        if account.under_way or account.waiting or left > 0:
            self._loop.call_later(max(left, self._counts_for), self._expire, account_id, account)
            self._start_waiting(account_id, account)
            return
        del self._accounts[account_id]
        self._note(account_id, -1)

    def _most(self, account_id: Hashable) -> int:
        are_others = len(self._accounts) > 1
        if self._shared is not None and not are_others:
            # Compares all accounts in the other processes with those that are this account.
            of_others = self._shared.of_others(self._kind)
            are_others = of_others > self._shared.of_others((self._kind, account_id))
        return BESIDE_OTHERS if are_others else ALONE

    def _note(self, account_id: Hashable, change: int) -> None:
        if self._shared is not None:
            self._shared.add(self._kind, change)
            self._shared.add((self._kind, account_id), change)

    def _end(self, account_id: Hashable, account: _Account) -> None:
        account.under_way -= 1
        self._start_waiting(account_id, account)

    def _start_waiting(self, account_id: Hashable, account: _Account) -> None:
        most = self._most(account_id)
        while account.waiting and account.under_way < most:
            turn = account.waiting.popleft()
            if not turn.done():
                account.under_way += 1
                turn.set_result(None)
