"""Forgets what was kept of requests to the API, once it is of no more use.

The rows are every region's: any worker forgets them, and two that do it at once take different
ones.
"""

from django.db import connection

from controlplane.models import Region

# Answers of one account; of more, the oldest go before their day is over.
MOST_OF_ACCOUNT = 10_000
# Rows that one round forgets of each kind, so that no statement takes long; the next one goes on.
AT_ONCE = 20_000

EXPIRED = """
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM controlplane_idempotentrequest
    WHERE created_at < now() - interval '1 day'
    ORDER BY created_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""
# Only who has added rows lately can have come to have too many.
SURPLUS = """
WITH busy AS (
    SELECT DISTINCT k.account_id FROM controlplane_idempotentrequest r
    JOIN controlplane_apikey k ON k.id = r.api_key_id
    WHERE r.created_at > now() - interval '10 minutes'
), crowded AS (
    SELECT k.account_id FROM busy
    JOIN controlplane_apikey k ON k.account_id = busy.account_id
    JOIN controlplane_idempotentrequest r ON r.api_key_id = k.id
    GROUP BY k.account_id HAVING count(*) > %(allowed)s
)
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM (
        SELECT r.id, row_number() OVER (
            PARTITION BY k.account_id ORDER BY r.created_at DESC, r.id DESC) AS place
        FROM controlplane_idempotentrequest r
        JOIN controlplane_apikey k ON k.id = r.api_key_id
        WHERE k.account_id IN (SELECT account_id FROM crowded)
    ) placed
    WHERE place > %(allowed)s LIMIT %(most)s
)
"""
# Who is not ahead of a rate is where one is who never asked.
SLACK = """
DELETE FROM controlplane_requestrate WHERE name IN (
    SELECT name FROM controlplane_requestrate
    WHERE free_at < now() - interval '1 minute'
    LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""


def forget_requests(region: Region) -> None:
    """Delete answers that nobody may ask for again, and rates that say nothing."""
    with connection.cursor() as cursor:
        for statement in (EXPIRED, SURPLUS, SLACK):
            cursor.execute(statement, {"allowed": MOST_OF_ACCOUNT, "most": AT_ONCE})
