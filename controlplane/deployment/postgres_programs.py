"""Runs one of Postgres's programs, in the version that computes have, against an endpoint: what the
commands `pg_dump`, `pg_restore` and `psql` have in common.

The bundled programs have no TLS, so they connect through this host's proxy on loopback. The program
replaces this process, so its input, output and exit status are the command's.
"""

import os
from argparse import REMAINDER
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.compute.host.binaries import PostgresUnusable, is_bundled, postgres_bin
from controlplane.deployment.service_command import ServiceCommand, endpoint_here
from controlplane.models import Database, Endpoint
from controlplane.services.catalog import find_database, find_role, password_of
from controlplane.services.errors import PasswordNotStored, ServiceError

POOLER_SUFFIX = "-pooler"
# The address at which a proxy that listens on all addresses is reached.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
# What the caller's environment may still tell libpq: not the host, the role or the TLS settings.
KEPT = frozenset(
    "PGAPPNAME PGCLIENTENCODING PGCONNECT_TIMEOUT PGDATESTYLE PGGEQO PGOPTIONS PGTZ".split()
)
# The caller's own is used too, if the service does not store the role's password.
PASSWORDS = frozenset({"PGPASSWORD", "PGPASSFILE"})


class PostgresProgram(ServiceCommand):
    """A command named after the program that it runs."""

    program: str
    # True if it may connect through the pooler; otherwise it always gets a session of its own.
    can_be_pooled = False
    refusals = (ServiceError, PostgresUnusable)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--role", metavar="NAME", help="by default the database's owner")
        parser.add_argument("--database", metavar="NAME", help="by default the branch's first one")
        super().add_arguments(parser)
        parser.add_argument(
            "endpoint", metavar="ENDPOINT", help="its id, such as ep-quiet-heron-123456"
        )
        parser.add_argument(
            "arguments",
            nargs=REMAINDER,
            metavar="ARGUMENTS",
            help=f"arguments for {self.program}",
        )

    def handle(
        self,
        *args: Any,
        endpoint: str,
        arguments: Sequence[str],
        role: str | None,
        database: str | None,
        **options: Any,
    ) -> NoReturn:
        way = find_way(endpoint, role=role, database=database, can_be_pooled=self.can_be_pooled)
        program = postgres_bin(way.major) / self.program
        if settings.PROXY_PLAIN_CONNECTIONS == "never" and is_bundled(way.major):
            raise CommandError(
                "the proxy accepts no connection without TLS (PERCH_PLAIN_CONNECTIONS=never), and "
                f"the {self.program} that Perch includes does not support TLS: use another one "
                "of the same version"
            )
        command = [str(program), *self.extra_arguments(way, arguments), *arguments]
        os.execve(program, command, environment_for(way, os.environ))  # noqa: S606

    def extra_arguments(self, way: "Way", arguments: Sequence[str]) -> Sequence[str]:
        """Arguments to add for the program, if its caller has left them out."""
        return ()


@dataclass(frozen=True)
class Way:
    """How a program connects to a database."""

    host: str
    port: int
    # The endpoint's id, with the suffix for its pooler.
    endpoint: str
    role: str
    database: str
    # None if it is not stored: the program asks for it.
    password: str | None
    # The major version of its Postgres.
    major: int


def find_way(
    endpoint_id: str, *, role: str | None, database: str | None, can_be_pooled: bool
) -> Way:
    """Raises CommandError, and NotFound if the branch has no such role or database."""
    name = endpoint_id.removesuffix(POOLER_SUFFIX)
    endpoint = endpoint_here(name)
    chosen = find_database(endpoint.branch, database) if database else _first_database(endpoint)
    owner = find_role(endpoint.branch, role or chosen.owner_name)
    try:
        password = password_of(endpoint.project, owner)
    except PasswordNotStored:
        password = None
    return Way(
        host=LOOPBACK.get(settings.PROXY_HOST, settings.PROXY_HOST),
        port=endpoint.project.host.port,
        endpoint=endpoint_id if can_be_pooled else name,
        role=owner.name,
        database=chosen.name,
        password=password,
        major=endpoint.project.pg_version,
    )


def _first_database(endpoint: Endpoint) -> Database:
    databases = Database.objects.filter(branch=endpoint.branch, deleted_at=None)
    first = databases.order_by("id").first()
    if first is None:
        raise CommandError("the endpoint's branch has no database")
    return first


def environment_for(way: Way, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment that makes libpq connect as `way` says. Arguments of the program override it.
    The stored password is only used for this host, port and role."""
    allowed = KEPT | PASSWORDS if way.password is None else KEPT
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("PG") or name in allowed
    }
    options = [f"endpoint={way.endpoint}", *filter(None, [inherited.get("PGOPTIONS")])]
    found = {
        "PGHOST": way.host,
        "PGPORT": str(way.port),
        "PGUSER": way.role,
        "PGDATABASE": way.database,
        "PGOPTIONS": " ".join(options),
    }
    if way.password is not None:
        found["PGPASSFILE"] = _password_file(way, way.password)
    return kept | found


def _password_file(way: Way, password: str) -> str:
    """The path of a file in memory that the program inherits and no other process has open. So the
    password is neither on its command line nor in its environment, and not on the disk."""
    fields = (way.host, str(way.port), "*", way.role, password)
    escaped = (field.replace("\\", "\\\\").replace(":", "\\:") for field in fields)
    descriptor = os.memfd_create("passwords", 0)
    # libpq ignores a file that others may read.
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, (":".join(escaped) + "\n").encode())
    return f"/proc/self/fd/{descriptor}"
