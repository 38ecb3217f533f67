"""What the commands about a service have in common, and the tables that they print."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, OperationalError, connection

from controlplane import clock
from controlplane.models import Endpoint


class ServiceCommand(BaseCommand):
    """A command about the service that a state directory belongs to. Of an exception of its
    `refusals` it prints the message, and fails."""

    refusals: tuple[type[Exception], ...] = ()
    # These are about the API's code, which most commands do not load.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except self.refusals as error:
            raise CommandError(str(error)) from error
        except OperationalError:
            raise  # manage.py says what to do
        except Error as error:
            raise CommandError(f"Perch's own database refuses this: {error}") from error

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def endpoint_here(endpoint_id: str) -> Endpoint:
    """The endpoint, with its project and branch. Raises CommandError if there is none, or if it is
    on another host."""
    found = Endpoint.objects.select_related("project__host", "branch")
    endpoint = found.filter(id=endpoint_id, deleted_at=None, project__deleted_at=None).first()
    if endpoint is None:
        raise CommandError(f'unknown endpoint "{endpoint_id}"')
    host = endpoint.project.host_id
    if host != settings.HOST_NAME:
        raise CommandError(f'the endpoint is on the host "{host}": run this there')
    return endpoint


FORCE_HELP = (
    "remove its projects as well, with their endpoints, roles and passwords, if it is lost. Their "
    "data is not deleted, but Perch has no record of it any more"
)


def jobs_by_host() -> dict[str, int]:
    """How many jobs wait or are running, in all lanes of each host."""
    jobs = (
        "SELECT regexp_replace(queue, '^region-(.*)-[a-z]+$', '\\1'), count(*)"
        " FROM controlplane_job GROUP BY 1"
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
