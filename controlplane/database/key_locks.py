"""The advisory locks by which connections show which secret key their process encrypts with.
`database.secret_keys` retires no key that is still used."""

import zlib

from controlplane import encryption

# The first number of these locks.
LOCK_CLASS = 0x5EC2E7


def hold_present_key() -> str:
    """The statement that takes the lock until the connection ends. It never waits, because all of
    these locks are shared."""
    number = lock_number(next(iter(encryption.fingerprints())))
    return f"SELECT pg_advisory_lock_shared({LOCK_CLASS}, {number})"


def lock_number(fingerprint: str) -> int:
    """The second number of the lock: 31 bits, so that pg_locks shows it without a sign."""
    return zlib.crc32(fingerprint.encode()) & 0x7FFFFFFF
