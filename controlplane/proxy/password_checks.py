"""Checks clear-text passwords outside the event loop. Each check takes a core for milliseconds, and
anybody can cause any number of checks.

One thread checks them, at a lower priority than the host's other work. One password at a time is
checked for each address and for each endpoint. A correct password is remembered as long as its
verifier stays the same, so checking it again costs nothing.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_network

from controlplane.address_ranges import parse_address
from controlplane.proxy.errors import PasswordFailed
from controlplane.proxy.passwords import check_password
from controlplane.proxy.scram import Verifier

_MOST_KNOWN = 10_000
_NICENESS = 5


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted_by: int = 0


class PasswordChecks:
    """For one process; must be used within its event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="password", initializer=_give_way)
        self._turns: dict[str, _Turn] = {}
        # Digests of the correct passwords, the last used at the end. They reveal nothing without
        # the key, which exists only in this process.
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(
        self, verifier: Verifier, password: bytes, *, role: str, endpoint_id: str, address: str
    ) -> None:
        """Raises PasswordFailed unless the password fits the verifier, which is that of the
        endpoint's role. The password came from `address`."""
        known_by = self._known_by(verifier, password)
        if known_by in self._known:
            self._known.move_to_end(known_by)
            return
        loop = asyncio.get_running_loop()
        # Always in this order, so that two checks cannot deadlock.
        async with self._turn(f"from {_neighbourhood(address)}"), self._turn(f"to {endpoint_id}"):
            fits = await loop.run_in_executor(self._thread, check_password, verifier, password)
        if not fits:
            raise PasswordFailed(role)
        self._known[known_by] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _known_by(self, verifier: Verifier, password: bytes) -> bytes:
        made = f"{verifier.is_mock} {verifier.iterations} {len(verifier.salt)} ".encode()
        keys = verifier.stored_key + verifier.server_key
        return hmac.digest(self._key, made + keys + verifier.salt + password, "sha256")

    @contextlib.asynccontextmanager
    async def _turn(self, whose: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(whose, _Turn())
        turn.wanted_by += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted_by -= 1
            if not turn.wanted_by:
                del self._turns[whose]


def _neighbourhood(address: str) -> str:
    """Returns the address, or for IPv6 the network that one customer usually has."""
    found = parse_address(address)
    return str(ip_network((found, 64), strict=False) if isinstance(found, IPv6Address) else found)


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
