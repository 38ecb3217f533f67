"""What `manage.py hosts` and `manage.py regions` print."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import connection

from controlplane import clock

FORCE_HELP = (
    "remove its projects as well, with their endpoints, roles and passwords, if it is lost. Their "
    "data is not deleted, but Perch has no record of it any more"
)


def jobs_by_host() -> dict[str, int]:
    """How many jobs wait or are running, in all lanes of each host."""
    jobs = (
        "SELECT regexp_replace(queue_name, '^region-(.*)-[a-z]+$', '\\1'), count(*)"
        " FROM procrastinate_jobs WHERE status IN ('todo', 'doing') GROUP BY 1"
    )
    with connection.cursor() as cursor:
        cursor.execute(jobs)
        return dict(cursor.fetchall())


def ago(at: datetime | None) -> str:
    return f"{(clock.now() - at).total_seconds():.0f} s ago" if at else "never"


def oldest(times: Iterable[datetime | None]) -> datetime | None:
    """The earliest of the times; None if one is missing, or if there are none."""
    found = list(times)
    known = [at for at in found if at is not None]
    return min(known) if known and len(known) == len(found) else None


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows with their cells aligned, the first as the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
