"""`manage.py install_pgbouncer`: builds a PgBouncer that keeps prepared statements."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.compute.pooler import pooler_version
from controlplane.management.pooler_build import BuildFailed, build_pgbouncer


class Command(BaseCommand):
    help = (
        "Builds PgBouncer from the source package of a later release of Debian or Ubuntu, for "
        "hosts whose own is older than 1.21, and puts it in the state directory."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            program = build_pgbouncer(self.stdout.write)
        except (BuildFailed, OSError) as error:
            raise CommandError(str(error)) from error
        version = ".".join(map(str, pooler_version(str(program))))
        self.stdout.write(
            f"{program} is PgBouncer {version}. Poolers that start from now on use it, unless "
            "PERCH_PGBOUNCER names another."
        )
