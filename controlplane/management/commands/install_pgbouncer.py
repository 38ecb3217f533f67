"""`manage.py install_pgbouncer`: builds a PgBouncer that keeps prepared statements."""

from typing import Any

from controlplane.compute.pooler import pooler_version
from controlplane.deployment.pooler_build import BuildFailed, build_pgbouncer
from controlplane.deployment.service_command import ServiceCommand


class Command(ServiceCommand):
    help = (
        "Builds PgBouncer from the source package of a later release of Debian or Ubuntu, for "
        "hosts whose own is older than 1.21, and puts it in the state directory."
    )
    refusals = (BuildFailed, OSError)

    def handle(self, *args: Any, **options: Any) -> None:
        program = build_pgbouncer(self.stdout.write)
        version = ".".join(map(str, pooler_version(str(program))))
        self.stdout.write(
            f"{program} is PgBouncer {version}. Poolers that start from now on use it, unless "
            "PERCH_PGBOUNCER names another."
        )
