"""An endpoint of a running service, with what its users need to connect to it."""

import os
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from tests.stack import Client, Stack, wait_for

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Place:
    """A project with one endpoint, and its owner's role."""

    stack: Stack
    api: Client
    project_id: str
    branch_id: str
    endpoint_id: str
    role: str
    password: str
    database: str

    @property
    def path(self) -> str:
        return f"/projects/{self.project_id}"

    @property
    def endpoint_path(self) -> str:
        return f"{self.path}/endpoints/{self.endpoint_id}"

    @property
    def branch_path(self) -> str:
        return f"{self.path}/branches/{self.branch_id}"

    def parameters(self, *, pooled: bool = False, tls: bool = True, **changes: Any) -> Any:
        """What libpq needs. Without TLS the endpoint is named by an option."""
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
        return psycopg.connect(
            **self.parameters(pooled=pooled, tls=tls, **changes), autocommit=True
        )

    def query(self, statement: str, **parameters: Any) -> Any:
        """The first row of the statement's result, over a connection of its own."""
        with self.connect(**parameters) as connection:
            return connection.execute(statement).fetchone()

    def refusal(self, **parameters: Any) -> psycopg.OperationalError:
        """Why a connection is turned away."""
        try:
            self.connect(**parameters).close()
        except psycopg.OperationalError as error:
            return error
        raise AssertionError("the connection was not refused")

    def psql(self, *arguments: str, **parameters: Any) -> "subprocess.CompletedProcess[str]":
        """Debian's psql, given nothing but the parameters."""
        return subprocess.run(
            ["psql", "-XqAt", *arguments],
            env={**os.environ, **environment_of(self.parameters(**parameters))},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def endpoint(self) -> Any:
        return self.api.get(self.endpoint_path)["endpoint"]

    def state(self) -> str:
        return str(self.endpoint()["current_state"])

    def operations(self, action: str | None = None) -> list[Any]:
        """The endpoint's operations, newest first."""
        found = self.api.get(f"{self.path}/operations", limit=1000)["operations"]
        return [
            row
            for row in found
            if row.get("endpoint_id") == self.endpoint_id and action in (None, row["action"])
        ]

    def settle(self) -> None:
        """Wait until nothing is under way."""
        wait_for(
            lambda: all(row["status"] in ("finished", "failed") for row in self.operations()),
            "all operations to end",
        )

    def await_operation(self, action: str, *, status: str = "finished") -> Any:
        """Wait until the newest operation of that kind has ended so, and return it."""
        wait_for(
            lambda: any(row["status"] == status for row in self.operations(action)[:1]),
            f"{action} to be {status}",
        )
        return self.operations(action)[0]

    def make_older(self, *, hours: float) -> None:
        """Move all that happened to the endpoint so far into the past."""
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

    def suspend(self) -> None:
        self.api.finish(self.api.post(f"{self.endpoint_path}/suspend"))
        assert self.state() == "idle"

    def start(self) -> None:
        self.api.finish(self.api.post(f"{self.endpoint_path}/start"))
        assert self.state() == "active"

    def update(self, **changes: Any) -> list[Any]:
        """Change the endpoint; returns the operations as they ended."""
        return self.api.finish(self.api.patch(self.endpoint_path, {"endpoint": changes}))

    def new_branch(self, name: str) -> str:
        made = self.api.post(f"{self.path}/branches", {"branch": {"name": name}})
        self.api.finish(made)
        return str(made["branch"]["id"])

    def new_role(self, name: str, **attributes: Any) -> str:
        """The role's password."""
        made = self.api.post(f"{self.branch_path}/roles", {"role": {"name": name, **attributes}})
        self.api.finish(made)
        return str(made["role"]["password"])

    def of_catalog(self, kind: str, name: str) -> str:
        """The path of one of the branch's `roles` or `databases`."""
        return f"{self.branch_path}/{kind}/{quote(name, safe='')}"

    def postmaster(self) -> psutil.Process:
        pid_file = self.stack.data_dir(self.branch_id) / "postmaster.pid"
        return psutil.Process(int(pid_file.read_text().split()[0]))

    def pooler(self) -> psutil.Process | None:
        config = self.stack.state_dir / "branches" / self.branch_id / "pgbouncer.ini"
        return find_process(config)


def environment_of(parameters: dict[str, Any]) -> dict[str, str]:
    """The parameters as libpq reads them from the environment."""
    names = {"dbname": "PGDATABASE", "options": "PGOPTIONS"}
    return {names.get(name, f"PG{name.upper()}"): str(value) for name, value in parameters.items()}


def find_process(argument: Path) -> psutil.Process | None:
    """The process that was started with the argument."""
    for process in psutil.process_iter():
        try:
            if str(argument) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.Error:
            continue
    return None


def new_place(stack: Stack, api: Client, *, wait: bool = True, **project: Any) -> Place:
    """A project of the account's, by default once it is ready and awake."""
    created = api.new_project(wait=wait, **project)
    parameters = created["connection_uris"][0]["connection_parameters"]
    return Place(
        stack=stack,
        api=api,
        project_id=created["project"]["id"],
        branch_id=created["branch"]["id"],
        endpoint_id=created["endpoints"][0]["id"],
        role=parameters["role"],
        password=parameters["password"],
        database=parameters["database"],
    )


def last_words(connection: Connection) -> str:
    """Wait for the server to end an idle connection; returns the SQLSTATE that it gave."""
    # A query would be activity, so none is made before there is something to read.
    assert select.select([connection.fileno()], [], [], 30)[0], "the connection is still open"
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        return error.sqlstate or "no SQLSTATE"
    raise AssertionError("the connection is still served")


def serves(connection: Connection) -> bool:
    return connection.execute("SELECT 1").fetchone() == (1,)
