"""Invitations of new hosts: what a new machine needs to serve a region, encrypted with a key that
only the token of the invitation has. Nobody can read the database or the answer without it."""

import hashlib
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import timedelta

from cryptography.fernet import Fernet, InvalidToken

from controlplane import clock
from controlplane.models import HostInvitation
from controlplane.services.errors import Invalid

INVITATION_TTL = timedelta(minutes=10)
PREFIX = "perchjoin_"
# Bytes: which invitation, and the key of its content.
NAME_BYTES, KEY_BYTES = 16, 32


def invite(content: bytes) -> str:
    """Store the content for one reading within `INVITATION_TTL`. Returns the token."""
    now = clock.now()
    HostInvitation.objects.filter(expires_at__lte=now).delete()
    name, key = secrets.token_bytes(NAME_BYTES), secrets.token_bytes(KEY_BYTES)
    HostInvitation.objects.create(
        digest=_digest(name.hex()),
        content=Fernet(urlsafe_b64encode(key)).encrypt(content).decode(),
        expires_at=now + INVITATION_TTL,
    )
    return PREFIX + urlsafe_b64encode(name + key).decode()


def take_invitation(name: str) -> str | None:
    """The encrypted content of an invitation that has not expired. It cannot be taken again."""
    found = HostInvitation.objects.filter(digest=_digest(name))
    # Of two requests that take it at the same time, one deletes the row.
    taken = found.first()
    if taken is None or not found.delete()[0] or taken.expires_at <= clock.now():
        return None
    return taken.content


def name_in(token: str) -> str:
    """The name of the token's invitation, for `take_invitation`. Raises Invalid."""
    return _parts(token)[0].hex()


def decrypted(token: str, content: str) -> bytes:
    """The content of the token's invitation. Raises Invalid if it is not of this token."""
    try:
        return Fernet(urlsafe_b64encode(_parts(token)[1])).decrypt(content)
    except InvalidToken:
        raise Invalid("the answer is not the invitation of this token") from None


def _parts(token: str) -> tuple[bytes, bytes]:
    try:
        raw = urlsafe_b64decode(token.removeprefix(PREFIX))
    except ValueError:
        raw = b""
    if not token.startswith(PREFIX) or len(raw) != NAME_BYTES + KEY_BYTES:
        raise Invalid("this is not a token that `hosts add` has printed, or not all of it")
    return raw[:NAME_BYTES], raw[NAME_BYTES:]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
