"""Requests that are sent twice and done once: `Idempotency-Key`.

One transaction holds the key, whatever the request changes, and its answer, so the change and the
answer are kept together or not at all, whenever the process is killed. The key is held by an
advisory lock of the transaction: a second request with it waits in the database for the first one's
transaction to end. It holds nothing meanwhile, and everybody takes this lock before any other:
nobody can come to wait for it in a circle.

Not by a row that is written first: a transaction that has written has a number, and while it
waits for a project that somebody else is changing, no later event can be shown to anybody (see
`models.event`).

The services' own transactions are savepoints within. They tell others (NOTIFY, jobs) what they
have done once the outer one commits, which is just before the answer is sent.
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

KEPT_FOR = timedelta(days=1)
LONGEST_KEY = 255


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status and its body."""

    status: int
    body: str


class AnsweredBefore(Exception):
    """The request was answered before; nothing is to be done but to give the answer again."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass
class Claim:
    """A request that is the first with its key. What it has changed is kept where it has come to
    an `answer`, and undone where it has not."""

    answer: Answer | None = None


def fingerprint_of(*parts: bytes) -> str:
    """What tells one request from another with the same key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def lock_of(api_key_id: int, key: str) -> int:
    """The number of the key's advisory lock. Where two keys should ever have the same, one waits
    for the other, and no more."""
    digest = hashlib.sha256(f"idempotency {api_key_id} {key}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


@contextmanager
def claimed(api_key: ApiKey, key: str, fingerprint: str) -> Iterator[Claim]:
    """A transaction in which a request may be served that bears an idempotency key.

    Raises AnsweredBefore; Invalid for a bad key; Unprocessable where the key stands for another
    request; Conflict where one with the key is under way for longer than a statement may take.
    """
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Invalid(f"Idempotency-Key must have 1 to {LONGEST_KEY} printable ASCII characters")
    with transaction.atomic():
        _lock(lock_of(api_key.id, key))
        # A statement of its own after the lock: it sees what the one before us has committed.
        since = clock.now() - KEPT_FOR
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
                "a request with this Idempotency-Key is still being served; try again"
            ) from error
        raise


def _answer_of(row: IdempotentRequest, fingerprint: str) -> Answer:
    """Raises Unprocessable, Conflict."""
    if row.fingerprint != fingerprint:
        raise Unprocessable(
            "this Idempotency-Key was used for another request (other method, address or body); "
            "take a new key for a new request"
        )
    try:
        return Answer(row.status, decrypt(row.answer))
    except InvalidToken as error:
        raise Conflict(
            "the request was answered before, but PERCH_SECRET_KEY has changed since then: "
            "the answer cannot be read any more"
        ) from error


def _keep(api_key: ApiKey, key: str, fingerprint: str, answer: Answer) -> None:
    """In place of one that is too old to count, where there still is one."""
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
