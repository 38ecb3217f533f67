"""Deletes what was stored about requests to the API, when it is no longer needed.

The rows belong to no host. Any worker deletes them, and two workers that do so at the same time
delete different rows.
"""

from django.db import connection

from controlplane.models import Host

# The most stored answers of one account, and their bytes. Beyond either limit the oldest are
# deleted before a day is over.
MAX_PER_ACCOUNT = 10_000
MAX_BYTES_PER_ACCOUNT = 64 << 20
# The most rows of each kind that one round deletes, so that no statement takes long; the next round
# continues.
BATCH_SIZE = 20_000

EXPIRED = """
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM controlplane_idempotentrequest
    WHERE created_at < now() - interval '1 day'
    ORDER BY created_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""
# Only accounts that have added rows lately can have too many.
SURPLUS = """
WITH busy AS (
    SELECT DISTINCT k.account_id FROM controlplane_idempotentrequest r
    JOIN controlplane_apikey k ON k.id = r.api_key_id
    WHERE r.created_at > now() - interval '10 minutes'
), crowded AS (
    SELECT k.account_id FROM busy
    JOIN controlplane_apikey k ON k.account_id = busy.account_id
    JOIN controlplane_idempotentrequest r ON r.api_key_id = k.id
    GROUP BY k.account_id
    HAVING count(*) > %(allowed)s OR sum(octet_length(r.answer)) > %(bytes)s
)
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM (
        SELECT r.id, row_number() OVER newer AS place, sum(octet_length(r.answer)) OVER newer AS sum
        FROM controlplane_idempotentrequest r
        JOIN controlplane_apikey k ON k.id = r.api_key_id
        WHERE k.account_id IN (SELECT account_id FROM crowded)
        WINDOW newer AS (PARTITION BY k.account_id ORDER BY r.created_at DESC, r.id DESC)
    ) placed
    WHERE place > %(allowed)s OR sum > %(bytes)s LIMIT %(most)s
)
"""
# A name that is not ahead of its rate is in the same position as one without a row.
SLACK = """
DELETE FROM controlplane_requestrate WHERE name IN (
    SELECT name FROM controlplane_requestrate
    WHERE free_at < now() - interval '1 minute'
    LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""


def forget_requests(host: Host) -> None:
    """Delete answers that no client may ask for again, and rate rows that have no effect."""
    values = {"allowed": MAX_PER_ACCOUNT, "bytes": MAX_BYTES_PER_ACCOUNT, "most": BATCH_SIZE}
    with connection.cursor() as cursor:
        for statement in (EXPIRED, SURPLUS, SLACK):
            cursor.execute(statement, values)
