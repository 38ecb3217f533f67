"""Passwords in clear text, checked beside the event loop: each costs milliseconds of a core, and
anybody may have any number of them checked.

One thread does it, which gives way to all else that the host does. It takes turns: of one address,
and of one endpoint, one password at a time is checked. A password that was right is known again
while its verifier stays, so that whoever comes back costs nothing.
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
    """Of one process; to be used within its event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="password", initializer=_give_way)
        self._turns: dict[str, _Turn] = {}
        # What the right ones are known by, the one used last at the end. Without the key, which
        # ends with the process, it tells nothing of them.
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(
        self, verifier: Verifier, password: bytes, *, role: str, endpoint_id: str, address: str
    ) -> None:
        """Raises PasswordFailed unless the password, which came from the address, is that of the
        endpoint's role, of which the verifier is."""
        known_by = self._known_by(verifier, password)
        if known_by in self._known:
            self._known.move_to_end(known_by)
            return
        loop = asyncio.get_running_loop()
        # In this order always, so that none waits in a circle.
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
    """The address, of IPv6 the network that one customer has."""
    found = parse_address(address)
    return str(ip_network((found, 64), strict=False) if isinstance(found, IPv6Address) else found)


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
