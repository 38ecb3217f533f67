"""Encrypts values that are stored and must be decrypted again, with keys derived from
PERCH_SECRET_KEY.

Each purpose has its own key, so a value that was encrypted for one purpose cannot be decrypted for
another. Values that were encrypted with a key of PERCH_SECRET_KEY_FALLBACKS can still be decrypted;
`database.secret_keys` encrypts them with the present key.
"""

import base64
import hashlib
import zlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

# The purposes. The answers to requests with an Idempotency-Key share that of passwords.
ROLE_PASSWORDS, WEBHOOK_SECRETS, HISTORY_KEYS = "role passwords", "webhook secrets", "history keys"
MASKING_SECRETS = "masking secrets"


def encrypt(text: str, *, purpose: str) -> str:
    return _fernet(purpose, settings.SECRET_KEY).encrypt(text.encode()).decode()


def decrypt(encrypted: str, *, purpose: str) -> str:
    """Raises cryptography.fernet.InvalidToken if the value was encrypted with a secret key that is
    not known here, or for another purpose."""
    keys = MultiFernet([_fernet(purpose, secret) for secret in _secrets()])
    return keys.decrypt(encrypted.encode()).decode()


def reencrypt(encrypted: str, *, purpose: str) -> str | None:
    """The value encrypted with the present key; None if it is already. Raises InvalidToken as
    `decrypt` does."""
    try:
        _fernet(purpose, settings.SECRET_KEY).decrypt(encrypted.encode())
    except InvalidToken:
        return encrypt(decrypt(encrypted, purpose=purpose), purpose=purpose)
    return None


def fingerprints() -> dict[str, str]:
    """The known secret keys by fingerprint, the present one first. Fingerprints are not secret, as
    far as the keys are random: they are stored to recognize a wrong key."""
    return {_derived(secret, b"perch key fingerprint").hex()[:32]: secret for secret in _secrets()}


def history_key(secret: str) -> str:
    """The key, in base64, that the copy of the history is encrypted with if the operator has chosen
    no other."""
    return base64.b64encode(_derived(secret, b"perch history store")).decode()


def history_keys() -> list[str]:
    """`history_key` of each known secret key, the present one first."""
    return [history_key(secret) for secret in _secrets()]


def _secrets() -> list[str]:
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def _fernet(purpose: str, secret: str) -> Fernet:
    digest = hashlib.sha256(f"{purpose}:{secret}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


def _derived(secret: str, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret.encode())


# The first number of these locks.
LOCK_CLASS = 0x5EC2E7


def hold_present_key() -> str:
    """The statement that takes the lock until the connection ends. It never waits, because all of
    these locks are shared."""
    number = lock_number(next(iter(fingerprints())))
    return f"SELECT pg_advisory_lock_shared({LOCK_CLASS}, {number})"


def lock_number(fingerprint: str) -> int:
    """The second number of the lock: 31 bits, so that pg_locks shows it without a sign."""
    return zlib.crc32(fingerprint.encode()) & 0x7FFFFFFF
