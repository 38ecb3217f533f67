"""The PgBouncer of this host, which the tests' services use."""

import os
import shutil

from controlplane.compute.pooler import pooler_version
from controlplane.compute.settings.pooler_settings import KEEPS_PREPARED_STATEMENTS, Version


def host_version() -> Version:
    """Return its version; (0, 0) if there is none."""
    named = os.environ.get("PERCH_PGBOUNCER", "pgbouncer")
    program = shutil.which(named) or shutil.which(named, path="/usr/sbin:/usr/local/sbin")
    return pooler_version(program) if program else (0, 0)


def keeps_prepared_statements() -> bool:
    return host_version() >= KEEPS_PREPARED_STATEMENTS
