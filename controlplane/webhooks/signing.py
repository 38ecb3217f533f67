"""Secrets and signatures in the form of Standard Webhooks (https://www.standardwebhooks.com)."""

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable

from controlplane import encryption

PREFIX = "whsec_"
# Bytes of a secret: of a generated one, and the least and most of one that an account sends.
SECRET_BYTES, MIN_BYTES, MAX_BYTES = 32, 24, 64


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for. Raises ValueError if it is not a valid secret."""
    words = f"a secret is {PREFIX} and the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes"
    if not secret.startswith(PREFIX):
        raise ValueError(words)
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(words) from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ValueError(words)
    return key


def signature(keys: Iterable[bytes], *, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`, with one signature for each key. `timestamp` is
    in seconds since 1970."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, "sha256") for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def encrypt(secret: str) -> str:
    return encryption.encrypt(secret, purpose=encryption.WEBHOOK_SECRETS)


def decrypt(encrypted: str) -> str:
    """The plain secret. Raises cryptography.fernet.InvalidToken as `controlplane.encryption`
    does."""
    return encryption.decrypt(encrypted, purpose=encryption.WEBHOOK_SECRETS)
