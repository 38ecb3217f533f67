"""Deletes usage that is older than the API reports, and reporters that no longer report."""

from django.db import connection

from controlplane.models import Host

# The most rows that one round deletes; the next round continues.
BATCH_SIZE = 50_000
# By account, because the index begins with it.
OLD_USAGE = """
DELETE FROM controlplane_usage WHERE id IN (
    SELECT u.id FROM controlplane_account a
    CROSS JOIN perch_spans() s
    JOIN controlplane_usage u
        ON u.account_id = a.id AND u.span = s.span AND u.start < now() - s.kept - s.step
    LIMIT %s
)
"""
# A reporter repeats a report until it is answered, and no database is down for as long as this.
SILENT_REPORTERS = """
DELETE FROM controlplane_trafficreporter WHERE reported_at < now() - interval '7 days'
"""


def forget_usage(host: Host) -> None:
    """Delete the rows of all hosts, because an account's rows are of several hosts."""
    with connection.cursor() as cursor:
        cursor.execute(OLD_USAGE, [BATCH_SIZE])
        cursor.execute(SILENT_REPORTERS)
