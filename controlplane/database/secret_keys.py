"""Which secret keys the metadata is encrypted with. Every process checks at its start that it has
them: with another key it could not read what is stored, and others could not read what it stores.
"""

from dataclasses import dataclass

import psycopg
from cryptography.fernet import InvalidToken
from django.conf import settings

from controlplane import encryption
from controlplane.database.version import CONNECT_TIMEOUT, conninfo
from controlplane.environment import Unstored

# The advisory lock of changes to the stored fingerprints.
FINGERPRINTS_LOCK = 0x5EC2E8
# How many values are looked at if no fingerprint is stored yet.
SAMPLE_SIZE = 20


class OtherSecretKey(Exception):
    """There is no secret key here, or the metadata is encrypted with another one. The message says
    what to do."""


@dataclass(frozen=True)
class Encrypted:
    """A column with encrypted values; "" stands for none."""

    table: str
    key: str
    column: str
    purpose: str


ENCRYPTED = (
    Encrypted("controlplane_role", "id", "encrypted_password", encryption.ROLE_PASSWORDS),
    Encrypted("controlplane_formerpassword", "id", "encrypted_password", encryption.ROLE_PASSWORDS),
    Encrypted("controlplane_idempotentrequest", "id", "answer", encryption.ROLE_PASSWORDS),
    Encrypted("controlplane_webhook", "id", "secret", encryption.WEBHOOK_SECRETS),
    Encrypted("controlplane_webhook", "id", "previous_secret", encryption.WEBHOOK_SECRETS),
    Encrypted("controlplane_secretkey", "fingerprint", "history_key", encryption.HISTORY_KEYS),
)


def refuse_other_key() -> None:
    """Raises OtherSecretKey if this process has no key, or if a key is missing here that values are
    encrypted with, and psycopg.OperationalError. Stores the fingerprint of the present key if it is
    new.

    The schema must be this version's. No connection is left open, as `refuse_other_version` says.
    """
    if isinstance(settings.SECRET_KEY, Unstored):
        raise OtherSecretKey(
            "there is no secret key: set PERCH_SECRET_KEY, or PERCH_SECRET_KEY_FILE to a file that "
            "this account can read"
        )
    known = list(encryption.fingerprints())
    with psycopg.connect(conninfo(), connect_timeout=CONNECT_TIMEOUT) as session:
        session.execute("SELECT pg_advisory_xact_lock(%s)", [FINGERPRINTS_LOCK])
        stored = keys_in_use(session)
        if stored - set(known) or (not stored and not _can_decrypt_any(session)):
            raise OtherSecretKey(
                "PERCH_SECRET_KEY is not the key that the passwords in this database are encrypted "
                "with. Set it (or PERCH_SECRET_KEY_FILE, or the file secret-key in the state "
                "directory) to the key that the other processes have. If you are replacing the "
                "key, add the one before to PERCH_SECRET_KEY_FALLBACKS until "
                f"`{settings.PROGRAM} rotate_secret_key` has ended"
            )
        if known[0] not in stored:
            session.execute(
                "INSERT INTO controlplane_secretkey (fingerprint) VALUES (%s)"
                " ON CONFLICT (fingerprint) DO UPDATE SET retired_at = NULL, history_key = ''",
                known[:1],
            )


def keys_in_use(session: "psycopg.Connection[tuple[object, ...]]") -> set[str]:
    """The fingerprints of the keys that values may be encrypted with."""
    rows = session.execute(
        "SELECT fingerprint FROM controlplane_secretkey WHERE retired_at IS NULL"
    )
    return {str(fingerprint) for (fingerprint,) in rows}


def _can_decrypt_any(session: "psycopg.Connection[tuple[object, ...]]") -> bool:
    """Whether a role's password can be decrypted, of those stored last; true if there are none."""
    rows = session.execute(
        "SELECT encrypted_password FROM controlplane_role WHERE encrypted_password <> ''"
        " ORDER BY id DESC LIMIT %s",
        [SAMPLE_SIZE],
    ).fetchall()
    return not rows or any(_is_readable(str(value)) for (value,) in rows)


def _is_readable(value: str) -> bool:
    try:
        encryption.decrypt(value, purpose=encryption.ROLE_PASSWORDS)
    except InvalidToken:
        return False
    return True
