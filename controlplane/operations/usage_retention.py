"""Forgets what was used longer ago than the API tells of, and processes that report no more."""

from django.db import connection

from controlplane.models import Region

# Rows that one round deletes; the next one goes on.
AT_ONCE = 50_000
# By account, as the index has them.
OLD_USAGE = """
DELETE FROM controlplane_usage WHERE id IN (
    SELECT u.id FROM controlplane_account a
    CROSS JOIN perch_spans() s
    JOIN controlplane_usage u
        ON u.account_id = a.id AND u.span = s.span AND u.start < now() - s.kept - s.step
    LIMIT %s
)
"""
# A report is sent again for as long as its answer is missing: no database is silent for as long.
SILENT_REPORTERS = """
DELETE FROM controlplane_trafficreporter WHERE reported_at < now() - interval '7 days'
"""


def forget_usage(region: Region) -> None:
    """Delete the rows of all regions: those of an account are of several."""
    with connection.cursor() as cursor:
        cursor.execute(OLD_USAGE, [AT_ONCE])
        cursor.execute(SILENT_REPORTERS)
