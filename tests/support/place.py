"""A project with what is needed to connect to its endpoint."""

import os
import select
import subprocess
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from tests.support.client import ENDED, Client
from tests.support.pooler import keeps_prepared_statements
from tests.support.processes import process_with
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

Connection = psycopg.Connection[tuple[Any, ...]]


class Place(Project):
    """A project with one endpoint, and its owner's role."""

    def __init__(self, stack: Stack, client: Client, created: Any) -> None:
        super().__init__(stack, client, created)
        parameters = created["connection_uris"][0]["connection_parameters"]
        self.role: str = parameters["role"]
        self.password: str = parameters["password"]
        self.database: str = parameters["database"]

    # connecting

    def parameters(self, *, pooled: bool = False, tls: bool = True, **changes: Any) -> Any:
        """Return libpq's parameters. Without TLS, an option names the endpoint."""
        name = self.endpoint_id + ("-pooler" if pooled else "")
        return {
            "host": f"{name}.localhost" if tls else "127.0.0.1",
            # Not every resolver knows *.localhost.
            "hostaddr": "127.0.0.1",
            "port": self.stack.proxy_port,
            "user": self.role,
            "password": self.password,
            "dbname": self.database,
            "sslmode": "require" if tls else "disable",
            "connect_timeout": 40,
            **({} if tls else {"options": f"endpoint={name}"}),
            **changes,
        }

    def connect(self, *, pooled: bool = False, tls: bool = True, **changes: Any) -> Connection:
        connection: Connection = psycopg.connect(
            **self.parameters(pooled=pooled, tls=tls, **changes), autocommit=True
        )
        if pooled and not keeps_prepared_statements():
            connection.prepare_threshold = None
        return connection

    def query(self, statement: str, **parameters: Any) -> Any:
        """Return the first row of the statement's result, over a new connection."""
        with self.connect(**parameters) as connection:
            return connection.execute(statement).fetchone()

    def is_served(self, **parameters: Any) -> bool:
        """Return whether a new connection is accepted and answers."""
        try:
            return bool(self.query("SELECT 1", **parameters) == (1,))
        except psycopg.OperationalError:
            return False

    def refusal(self, **parameters: Any) -> psycopg.OperationalError:
        """Return the error with which a connection is refused."""
        try:
            self.connect(**parameters).close()
        except psycopg.OperationalError as error:
            return error
        raise AssertionError("the connection was not refused")

    def psql(self, *arguments: str, **parameters: Any) -> "subprocess.CompletedProcess[str]":
        """Run Debian's psql with only these parameters."""
        return subprocess.run(
            ["psql", "-XqAt", *arguments],
            env={**os.environ, **environment_of(self.parameters(**parameters))},
            capture_output=True,
            text=True,
            timeout=120,
        )

    # its one endpoint

    def state(self) -> str:
        return str(self.endpoint()["current_state"])

    def endpoint_operations(self, action: str | None = None) -> list[Any]:
        """The endpoint's operations, newest first."""
        found = self.client.get(f"{self.path}/operations", limit=1000)["operations"]
        return [
            row
            for row in found
            if row.get("endpoint_id") == self.endpoint_id and action in (None, row["action"])
        ]

    def settle(self) -> None:
        """Wait until no operation is in progress."""
        wait_for(
            lambda: all(row["status"] in ENDED for row in self.endpoint_operations()),
            "all operations to end",
        )

    def await_operation(self, action: str, *, status: str = "finished") -> Any:
        """Wait until the newest operation of that action has this status, and return it."""
        wait_for(
            lambda: any(row["status"] == status for row in self.endpoint_operations(action)[:1]),
            f"{action} to be {status}",
        )
        return self.endpoint_operations(action)[0]

    def make_older(self, *, hours: float) -> None:
        """Move the endpoint's past by so many hours."""
        with self.stack.database() as database:
            for table, column in (
                ("endpoint", "created_at"),
                ("endpoint", "last_active"),
                ("operation", "created_at"),
            ):
                key = "id" if table == "endpoint" else "endpoint_id"
                database.execute(
                    f"UPDATE controlplane_{table} SET {column} = {column} - %s * interval '1 hour'"
                    f" WHERE {key} = %s".encode(),
                    [hours, self.endpoint_id],
                )
            # By what the row says, its next check is as far away as before.
            database.execute(
                "UPDATE controlplane_endpoint SET check_due_at = NULL WHERE id = %s",
                [self.endpoint_id],
            )

    def suspend(self, endpoint_id: str | None = None) -> Any:
        answer = super().suspend(endpoint_id)
        assert self.endpoint(endpoint_id)["current_state"] == "idle"
        return answer

    def start(self, endpoint_id: str | None = None) -> Any:
        answer = super().start(endpoint_id)
        assert self.endpoint(endpoint_id)["current_state"] == "active"
        return answer

    def new_role(self, name: str, **attributes: Any) -> str:
        """Create a role and return its password."""
        made = self.client.post(
            self.branch_path(rest="/roles"), {"role": {"name": name, **attributes}}
        )
        return str(self.done(made)["role"]["password"])

    def of_catalog(self, kind: str, name: str) -> str:
        """Return the path of one of the branch's `roles` or `databases`."""
        return self.branch_path(rest=f"/{kind}/{quote(name, safe='')}")

    def pooler(self) -> psutil.Process | None:
        return process_with(self.stack.state_dir / "branches" / self.branch_id / "pgbouncer.ini")

    def backends(self) -> int:
        """Return the number of clients' backends on the running compute, busy or idle."""
        with self.stack.compute(self.endpoint_id, "postgres") as platform:
            row = platform.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND usename <> 'perch_platform'"
            ).fetchone()
            return int(row[0]) if row else 0

    def sleepers(self) -> int:
        """Return the number of queries on the running compute that execute `pg_sleep`."""
        with self.stack.compute(self.endpoint_id) as platform:
            row = platform.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE state = 'active' AND query ~ '^SELECT pg_sleep'"
            ).fetchone()
            return int(row[0]) if row else 0


def environment_of(parameters: dict[str, Any]) -> dict[str, str]:
    """Return the parameters as environment variables of libpq."""
    names = {"dbname": "PGDATABASE", "options": "PGOPTIONS"}
    return {names.get(name, f"PG{name.upper()}"): str(value) for name, value in parameters.items()}


def last_words(connection: Connection) -> str:
    """Wait for the server to end an idle connection. Returns the SQLSTATE of its error."""
    # A query would be activity, so none is sent before there is something to read.
    assert select.select([connection.fileno()], [], [], 30)[0], "the connection is still open"
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        return error.sqlstate or "no SQLSTATE"
    raise AssertionError("the connection is still served")


def serves(connection: Connection) -> bool:
    return connection.execute("SELECT 1").fetchone() == (1,)
