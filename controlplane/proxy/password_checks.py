"""Passwords in clear text against verifiers, for many clients at once: in a few threads, and what
was right before is known again at no cost."""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from controlplane.proxy.passwords import check_password
from controlplane.proxy.scram import Verifier

# A check takes milliseconds of a core, and the relays of this process want the others.
_THREADS = 2
_MOST_KNOWN = 10_000


class PasswordChecks:
    """A client over HTTP shows its password with every request. One that was right is remembered
    beside its verifier, as a keyed hash whose key this process alone has and never writes; so it
    is forgotten with the verifier, when the password changes."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="password")
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[Verifier, bytes] = OrderedDict()

    async def fits(self, verifier: Verifier, password: bytes) -> bool:
        """As `passwords.check_password`."""
        digest = hmac.digest(self._key, password, "sha256")
        known = self._known.get(verifier)
        if known is not None and hmac.compare_digest(known, digest):
            self._known.move_to_end(verifier)
            return True
        loop = asyncio.get_running_loop()
        fits = await loop.run_in_executor(self._threads, check_password, verifier, password)
        if fits:
            self._known[verifier] = digest
            self._known.move_to_end(verifier)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return fits

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
