"""Executes requests with an `Idempotency-Key` only once, even if they are sent again.

One transaction contains the lock of the key, the changes of the request and its answer. So the
changes and the answer are stored together or not at all, whenever the process is killed. The key is
locked by an advisory lock of the transaction: a second request with the same key waits in the
database until the first one's transaction ends. It holds no other lock while it waits, because
every request with a key takes this lock before any other. So there can be no deadlock.

The lock is not a row that is inserted first, for this reason: a transaction that has written has a
number, and while it waits for the lock of a project, no later event can be shown to any reader (see
`models.event`).

The services' own transactions are savepoints within this one. Their notifications and jobs take
effect when the outer transaction commits, just before the answer is sent.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from cryptography.fernet import InvalidToken
from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from controlplane import clock
from controlplane.models import ApiKey, IdempotentRequest
from controlplane.services.errors import Conflict, Invalid, Unprocessable
from controlplane.services.passwords import decrypt, encrypt

RETENTION = timedelta(days=1)
MAX_KEY_LENGTH = 255


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status and its body."""

    status: int
    body: str


class AnsweredBefore(Exception):
    """The request was answered before; the caller only has to send the answer again."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass
class Claim:
    """The first request with its key. If `answer` is set, its changes are committed with the
    answer; otherwise they are rolled back."""

    answer: Answer | None = None


def fingerprint_of(*parts: bytes) -> str:
    """A digest of the parts of a request, which distinguishes it from others with the same key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def lock_of(api_key_id: int, key: str) -> int:
    """The number of the key's advisory lock. If two keys ever have the same number, their requests
    wait for each other, which does no harm."""
    digest = hashlib.sha256(f"idempotency {api_key_id} {key}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


@contextmanager
def claimed(api_key: ApiKey, key: str, fingerprint: str) -> Iterator[Claim]:
    """A transaction in which a request with an idempotency key may be served.

    Raises AnsweredBefore; Invalid for a bad key; Unprocessable if the key was used for another
    request; Conflict if a request with the key runs for longer than the statement timeout, or the
    stored answer cannot be decrypted.
    """
    if not 1 <= len(key) <= MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise Invalid(
            f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            fields=["Idempotency-Key"],
        )
    with transaction.atomic():
        _lock(lock_of(api_key.id, key))
        # A separate statement after the lock, so that it sees what the previous holder of the lock
        # has committed.
        since = clock.now() - RETENTION
        earlier = IdempotentRequest.objects.filter(api_key=api_key, key=key, created_at__gt=since)
        if row := earlier.first():
            raise AnsweredBefore(_answer_of(row, fingerprint))
        claim = Claim()
        yield claim
        if claim.answer is None:
            transaction.set_rollback(True)
        else:
            _keep(api_key, key, fingerprint, claim.answer)


def _lock(number: int) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            raise Conflict(
                "a request with this Idempotency-Key is still being served; try again",
                fields=["Idempotency-Key"],
            ) from error
        raise


def _answer_of(row: IdempotentRequest, fingerprint: str) -> Answer:
    """The stored answer. Raises Unprocessable, Conflict."""
    if row.fingerprint != fingerprint:
        raise Unprocessable(
            "this Idempotency-Key was used for another request (other method, address or body); "
            "send a new key with a new request",
            fields=["Idempotency-Key"],
        )
    try:
        return Answer(row.status, decrypt(row.answer))
    except InvalidToken as error:
        raise Conflict(
            "the request was answered before, but PERCH_SECRET_KEY has changed since then: "
            "the answer cannot be read any more"
        ) from error


def _keep(api_key: ApiKey, key: str, fingerprint: str, answer: Answer) -> None:
    """Store the answer, replacing one for the same key that has expired but is still stored."""
    row = IdempotentRequest(
        api_key=api_key,
        key=key,
        fingerprint=fingerprint,
        status=answer.status,
        answer=encrypt(answer.body),
    )
    IdempotentRequest.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["api_key", "key"],
        update_fields=["fingerprint", "status", "answer", "created_at"],
    )
