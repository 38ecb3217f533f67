"""Which secret keys the metadata is encrypted with. Every process checks at its start that it has
them: with another key it could not read what is stored, and others could not read what it stores.

`manage.py rotate_secret_key` encrypts all stored values with the present key. The service runs
meanwhile. Each value is replaced only if it is still the one that was read, so a rotation can be
killed at any time and begun again: it passes over what is done.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from cryptography.fernet import InvalidToken
from django.conf import settings
from psycopg import sql

from controlplane import encryption
from controlplane.database.version import CONNECT_TIMEOUT, conninfo
from controlplane.encryption import LOCK_CLASS, lock_number
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
    Encrypted("controlplane_project", "id", "masking_secret", encryption.MASKING_SECRETS),
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


Session = psycopg.Connection[tuple[Any, ...]]

BATCH_SIZE = 500
# Held by the session of the one rotation.
ROTATE_LOCK = 0x5EC2E9
POLL_INTERVAL = 0.5  # seconds


class RotationRefused(Exception):
    """The rotation cannot begin or end; the message says why and what to do."""


def rotate(say: Callable[[str], object]) -> None:
    """Encrypt everything with the present key, and retire the others. `say` is called with each
    message. The caller has checked the key (`refuse_other_key`).

    Raises RotationRefused, psycopg.OperationalError.
    """
    with _session() as session:
        _refuse_older_processes(session)
        while True:
            changed, unreadable = 0, 0
            for values in ENCRYPTED:
                done, failed = _pass_over(session, values)
                changed, unreadable = changed + done, unreadable + failed
                if done:
                    say(f"{values.table}.{values.column}: {done} encrypted with the present key")
            if not changed:
                break
            # A transaction that has begun before may still store a copy of what it has read.
            _wait_for_older_transactions(session, say)
        retired = _retire_other_keys(session)
    if unreadable:
        say(
            f"{unreadable} values can be read with none of the keys, and stay as they are: they "
            "were encrypted with a key that is neither PERCH_SECRET_KEY nor among "
            "PERCH_SECRET_KEY_FALLBACKS"
        )
    say(
        "Everything is encrypted with the present key. Other keys that are retired now: "
        f"{len(retired)}. PERCH_SECRET_KEY_FALLBACKS is not needed for stored values any more; "
        "keep it until the console's sessions have ended (PERCH_SESSION_IDLE_HOURS)"
    )


@contextmanager
def _session() -> Iterator[Session]:
    # Each value is a transaction of its own, so that no row stays locked.
    with psycopg.connect(conninfo(), connect_timeout=CONNECT_TIMEOUT, autocommit=True) as session:
        if session.execute("SELECT pg_try_advisory_lock(%s)", [ROTATE_LOCK]).fetchone() != (True,):
            raise RotationRefused("another rotation is running")
        # What a crash undoes is done again, because the keys are retired after it is on the disk.
        session.execute("SET synchronous_commit = off")
        try:
            yield session
        finally:
            # The server ends a closed session a moment later, and a second rotation would be
            # refused until then. A session that is broken has nothing to release.
            with suppress(psycopg.Error):
                session.execute("SELECT pg_advisory_unlock(%s)", [ROTATE_LOCK])


def _pass_over(session: Session, values: Encrypted) -> tuple[int, int]:
    """Encrypt the column's values anew. Returns how many were, and how many cannot be read."""
    table, key, column = map(sql.Identifier, (values.table, values.key, values.column))
    read = sql.SQL(
        "SELECT {k}, {c} FROM {t} WHERE {c} <> '' AND {after} ORDER BY {k} LIMIT %(most)s"
    )
    write = sql.SQL("UPDATE {t} SET {c} = %s WHERE {k} = %s AND {c} = %s").format(
        t=table, c=column, k=key
    )
    changed, unreadable, last = 0, 0, None
    while True:
        after = sql.SQL("true" if last is None else "{k} > %(last)s").format(k=key)
        rows = session.execute(
            read.format(t=table, c=column, k=key, after=after), {"last": last, "most": BATCH_SIZE}
        ).fetchall()
        for number, value in rows:
            try:
                anew = encryption.reencrypt(value, purpose=values.purpose)
            except InvalidToken:
                unreadable += 1
                continue
            if anew is not None:
                changed += session.execute(write, [anew, number, value]).rowcount
        if len(rows) < BATCH_SIZE:
            return changed, unreadable
        last = rows[-1][0]


def _wait_for_older_transactions(session: Session, say: Callable[[str], object]) -> None:
    until = session.execute("SELECT clock_timestamp()").fetchone()
    assert until is not None
    told = False
    while True:
        found = session.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start < %s",
            until,
        ).fetchone()
        if found == (0,):
            return
        if not told:
            told = True
            say("Waiting for the end of transactions that began before …")
        time.sleep(POLL_INTERVAL)


def _retire_other_keys(session: Session) -> set[str]:
    """Note that nothing is encrypted with other keys any more. Returns their fingerprints."""
    known = encryption.fingerprints()
    present = next(iter(known))
    with session.transaction():
        session.execute("SET LOCAL synchronous_commit = on")
        session.execute("SELECT pg_advisory_xact_lock(%s)", [FINGERPRINTS_LOCK])
        _refuse_older_processes(session)
        others = keys_in_use(session) - {present}
        for fingerprint in others:
            kept = encryption.encrypt(
                encryption.history_key(known[fingerprint]), purpose=encryption.HISTORY_KEYS
            )
            session.execute(
                "UPDATE controlplane_secretkey SET retired_at = now(), history_key = %s"
                " WHERE fingerprint = %s",
                [kept, fingerprint],
            )
    return others


def _refuse_older_processes(session: Session) -> None:
    """Raise RotationRefused if a process still encrypts with another key."""
    others = keys_in_use(session) - {next(iter(encryption.fingerprints()))}
    numbers = [lock_number(fingerprint) for fingerprint in others]
    found = session.execute(
        "SELECT count(DISTINCT pid) FROM pg_locks"
        " WHERE locktype = 'advisory' AND classid::bigint = %s"
        " AND objid::bigint = ANY(%s::bigint[]) AND objsubid = 2"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [LOCK_CLASS, numbers],
    ).fetchone()
    if found != (0,):
        raise RotationRefused(
            "processes still encrypt with the key before: restart every process (web, api, worker, "
            "proxy, or `up`) with the new PERCH_SECRET_KEY, then run this again"
        )
