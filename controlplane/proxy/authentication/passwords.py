"""Checks clear-text passwords against roles' verifiers, for clients that cannot use SCRAM with the
proxy: they name their endpoint in the password, or they speak HTTP.

The checks run outside the event loop. Each check takes a core for milliseconds, and
anybody can cause any number of checks.

One thread checks them, at a lower priority than the host's other work. Of each address and of each
endpoint, one password at a time is in its queue. Costly verifiers have a thread and turns of their
own, so their owner delays no check of a usual verifier, even from the same address. A correct
password is remembered as long as its verifier stays the same, so checking it again costs nothing.
"""

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import stringprep
import threading
import unicodedata
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from controlplane.address_ranges import network_of
from controlplane.proxy.authentication.scram import Verifier
from controlplane.proxy.wire.errors import PasswordFailed

_MAX_KNOWN = 10_000
_NICENESS = 5
# A check costs as many hashes as the verifier's iteration count, which a role's owner can choose.
# This many take half a second, and are more than anybody recommends.
MAX_ITERATIONS = 1_000_000
# Checks of more iterations than this are costly. Postgres's own default is 4,096.
_MAX_CHEAP_ITERATIONS = 4 * 4096

# In characters. Longer passwords are not prepared: normalizing takes time by the square of the
# length, in which no other thread runs.
_MAX_PREPARED_LENGTH = 1024

_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class PasswordChecks:
    """For one process; must be used within its event loop."""

    def __init__(self) -> None:
        self._cheap, self._costly = (
            ThreadPoolExecutor(1, thread_name_prefix="password", initializer=_lower_priority)
            for _ in range(2)
        )
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Digests of the correct passwords, the last used at the end. They reveal nothing without
        # the key, which exists only in this process.
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(
        self, verifier: Verifier, password: bytes, *, role: str, endpoint_id: str, address: str
    ) -> Verifier:
        """Returns the verifier, which is that of the endpoint's role. Raises PasswordFailed unless
        the password, which came from `address`, fits it."""
        if self.knows(verifier, password):
            return verifier
        loop = asyncio.get_running_loop()
        is_costly = verifier.iterations > _MAX_CHEAP_ITERATIONS
        kind, thread = ("costly", self._costly) if is_costly else ("cheap", self._cheap)
        # Always in this order, so that two checks cannot deadlock. Checks of the two kinds share no
        # turn: a cheap one that waited for a costly one would delay all cheap ones of its address.
        async with (
            self._turn(f"{kind} from {network_of(address)}"),
            self._turn(f"{kind} to {endpoint_id}"),
        ):
            fits = await loop.run_in_executor(thread, check_password, verifier, password)
        if not fits:
            raise PasswordFailed(role)
        self._known[self._digest(verifier, password)] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return verifier

    def knows(self, verifier: Verifier, password: bytes) -> bool:
        """True if the password was found to fit the verifier before."""
        digest = self._digest(verifier, password)
        if is_known := digest in self._known:
            self._known.move_to_end(digest)
        return is_known

    def close(self) -> None:
        for thread in (self._cheap, self._costly):
            thread.shutdown(wait=False, cancel_futures=True)

    def _digest(self, verifier: Verifier, password: bytes) -> bytes:
        made = f"{verifier.is_mock} {verifier.iterations} {len(verifier.salt)} ".encode()
        keys = verifier.stored_key + verifier.server_key
        return hmac.digest(self._key, made + keys + verifier.salt + password, "sha256")

    def _turn(self, whose: str) -> asyncio.Lock:
        return self._turns.setdefault(whose, asyncio.Lock())


def _lower_priority() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def check_password(verifier: Verifier, password: bytes) -> bool:
    """Returns whether the verifier was made from this password. For a mock (`scram.mock_verifier`)
    the result is False, but the check takes as long as for a real verifier.

    Computes as many hashes as the verifier has iterations, which usually takes milliseconds. The
    hashing lets other threads run, but this must not be called on the event loop.
    """
    if verifier.iterations > MAX_ITERATIONS:
        return False
    prepared = _prepared(password)
    salted = hashlib.pbkdf2_hmac("sha256", prepared, verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    fits = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
    fits &= hmac.compare_digest(server_key, verifier.server_key)
    return fits and not verifier.is_mock


def _prepared(password: bytes) -> bytes:
    """Prepares the password as Postgres clients do before hashing: by SASLprep (RFC 4013), or
    unchanged if SASLprep prohibits what the password contains."""
    if password.isascii():
        return password
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    if len(text) > _MAX_PREPARED_LENGTH:
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    return prepared.encode() if prepared and _is_allowed(prepared) else password


def _is_allowed(prepared: str) -> bool:
    if any(is_in(character) for character in prepared for is_in in _PROHIBITED):
        return False
    if not any(stringprep.in_table_d1(character) for character in prepared):
        return True
    # A string with right-to-left characters must start and end with one, and contain no
    # left-to-right ones (RFC 3454, section 6).
    return (
        stringprep.in_table_d1(prepared[0])
        and stringprep.in_table_d1(prepared[-1])
        and not any(stringprep.in_table_d2(character) for character in prepared)
    )
