"""Requests that are sent twice and done once: `Idempotency-Key`.

One transaction holds the key's row, whatever the request changes, and its answer, so the change
and the answer are kept together or not at all, whenever the process is killed. The row comes
first and is unique, so a second request with the key waits in the database for the first one's
transaction to end. It holds nothing meanwhile, and everybody takes the row before any other lock:
nobody can come to wait for it in a circle.

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

from controlplane.models import ApiKey, IdempotentRequest
from controlplane.services.errors import Conflict, Invalid, Unprocessable
from controlplane.services.passwords import decrypt, encrypt

KEPT_FOR = timedelta(days=1)
LONGEST_KEY = 255

# Waits for a transaction that has the same key under way. Where that has committed, it returns no
# row, unless the one that is there is too old to count.
CLAIM = """
INSERT INTO controlplane_idempotentrequest AS kept
    (api_key_id, key, fingerprint, answer, created_at)
VALUES (%s, %s, %s, '', now())
ON CONFLICT (api_key_id, key) DO UPDATE
SET fingerprint = excluded.fingerprint, status = NULL, answer = '', created_at = excluded.created_at
WHERE kept.created_at < now() - %s * interval '1 second'
RETURNING id
"""


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

    row_id: int
    answer: Answer | None = None


def fingerprint_of(*parts: bytes) -> str:
    """What tells one request from another with the same key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


@contextmanager
def claimed(api_key: ApiKey, key: str, fingerprint: str) -> Iterator[Claim]:
    """A transaction in which a request may be served that bears an idempotency key.

    Raises AnsweredBefore; Invalid for a bad key; Unprocessable where the key stands for another
    request; Conflict where one with the key is under way for longer than a statement may take.
    """
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Invalid(f"Idempotency-Key must have 1 to {LONGEST_KEY} printable ASCII characters")
    with transaction.atomic():
        claim = _claim(api_key, key, fingerprint)
        yield claim
        if claim.answer is None:
            transaction.set_rollback(True)
        else:
            IdempotentRequest.objects.filter(id=claim.row_id).update(
                status=claim.answer.status, answer=encrypt(claim.answer.body)
            )


def _claim(api_key: ApiKey, key: str, fingerprint: str) -> Claim:
    try:
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, [api_key.id, key, fingerprint, KEPT_FOR.total_seconds()])
            claimed = cursor.fetchone()
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            raise Conflict(
                "a request with this Idempotency-Key is still being served; try again"
            ) from error
        raise
    if claimed is not None:
        return Claim(row_id=claimed[0])
    # Locked by the statement above, so it stays until this transaction ends.
    earlier = IdempotentRequest.objects.get(api_key=api_key, key=key)
    if earlier.fingerprint != fingerprint:
        raise Unprocessable(
            "this Idempotency-Key was used for another request (other method, address or body); "
            "take a new key for a new request"
        )
    assert earlier.status is not None
    try:
        body = decrypt(earlier.answer)
    except InvalidToken as error:
        raise Conflict(
            "the request was answered before, but PERCH_SECRET_KEY has changed since then: "
            "the answer cannot be read any more"
        ) from error
    raise AnsweredBefore(Answer(earlier.status, body))
