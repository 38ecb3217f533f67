"""A project in tests: its paths, its parts, and access to what is behind the API."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import psutil
import psycopg
import requests

from tests.support.client import ENDED, Client
from tests.support.processes import postmaster_in
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Seconds. An endpoint is suspended after 300.
LONG_UNUSED = 120


class Project:
    """A project that was created through the API, with its first branch and endpoint."""

    # Its first branches, and whether each is the default one.
    branches_as_new: ClassVar = {"main": True}

    def __init__(self, stack: Stack, client: Client, created: Any) -> None:
        self.stack = stack
        self.client = client
        self.created = created
        self.id: str = created["project"]["id"]
        self.path = f"/projects/{self.id}"
        self.branch_id: str = created["branch"]["id"]
        self.endpoint_id: str = created["endpoints"][0]["id"]
        self.used_at = time.monotonic()

    @classmethod
    def create(cls, stack: Stack, client: Client, *, wait: bool = True, **attributes: Any) -> Self:
        """Create a project of the account and return it, by default once it is ready and active."""
        return cls(stack, client, client.new_project(wait=wait, **attributes))

    # paths

    def branch_path(self, branch_id: str | None = None, rest: str = "") -> str:
        return f"{self.path}/branches/{branch_id or self.branch_id}{rest}"

    def endpoint_path(self, endpoint_id: str | None = None, rest: str = "") -> str:
        return f"{self.path}/endpoints/{endpoint_id or self.endpoint_id}{rest}"

    # reading

    def branch(self, branch_id: str | None = None) -> Any:
        return self.client.get(self.branch_path(branch_id))["branch"]

    def endpoint(self, endpoint_id: str | None = None) -> Any:
        return self.client.get(self.endpoint_path(endpoint_id))["endpoint"]

    def endpoints(self) -> Any:
        return self.client.get(self.path + "/endpoints")["endpoints"]

    def operations(self) -> Any:
        return self.client.get(self.path + "/operations")["operations"]

    def operation(self, operation_id: str) -> Any:
        return self.client.get(f"{self.path}/operations/{operation_id}")["operation"]

    # changing: each waits for the end of its operations, which must succeed

    def done(self, answer: Any, *, timeout: float = 60.0) -> Any:
        for operation in self.client.finish(answer, timeout=timeout):
            assert operation["status"] == "finished", operation
        return answer

    def new_branch(self, *, endpoint: bool = False, **attributes: Any) -> Any:
        body: dict[str, Any] = {"branch": attributes}
        if endpoint:
            body["endpoints"] = [{"type": "read_write"}]
        return self.done(self.client.post(self.path + "/branches", body))

    def new_branch_id(self, **attributes: Any) -> str:
        return str(self.new_branch(**attributes)["branch"]["id"])

    def create_endpoint(self, branch_id: str, **attributes: Any) -> Any:
        return self.done(self.client.post(self.path + "/endpoints", wanted(branch_id, attributes)))

    def change(self, endpoint_id: str | None = None, **attributes: Any) -> Any:
        body = {"endpoint": attributes}
        return self.done(self.client.patch(self.endpoint_path(endpoint_id), body))

    def start(self, endpoint_id: str | None = None) -> Any:
        return self.done(self.client.post(self.endpoint_path(endpoint_id, "/start")))

    def suspend(self, endpoint_id: str | None = None) -> Any:
        return self.done(self.client.post(self.endpoint_path(endpoint_id, "/suspend")))

    def is_as_new(self) -> bool:
        """Return whether the project is unchanged for the next test. Wakes the endpoint if it is
        idle."""
        if not self.client.call("GET", self.path).ok:
            return False
        name = self.client.get(self.path)["project"]["name"]
        branches = self.client.get(self.path + "/branches")["branches"]
        was, is_now = self.created["endpoints"][0], self.endpoints()
        kept = was.keys() - {"current_state", "pending_state", "updated_at"}
        alike = [
            name == self.created["project"]["name"],
            {branch["name"]: branch["default"] for branch in branches} == self.branches_as_new,
            [{name: one.get(name) for name in kept} for one in is_now]
            == [{name: was[name] for name in kept}],
            {operation["status"] for operation in self.operations()} <= set(ENDED),
            len(self.client.get("/projects")["projects"]) == 1,
            self.client.get(self.path + "/snapshots")["snapshots"] == [],
        ]
        if not all(alike):
            return False
        self.start()
        self.used_at = time.monotonic()
        made = self.sql(
            "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace),"
            " (SELECT count(*) FROM pg_database), (SELECT count(*) FROM pg_roles WHERE oid > 16383)"
        )
        return made == [(0, 4, 2)]

    def woken(self) -> Self:
        """Return the project, with an active endpoint. One that no test has used for long would
        soon be suspended, in the middle of the next test."""
        if time.monotonic() - self.used_at > LONG_UNUSED:
            self.start()
            self.sql("SELECT 1")
        return self

    # behind the API

    def compute(self, endpoint_id: str | None = None) -> "psycopg.Connection[Any]":
        """Connect to the running compute, without the proxy."""
        return self.stack.compute(endpoint_id or self.endpoint_id)

    def is_running(self, endpoint_id: str | None = None) -> bool:
        return self.stack.is_running(endpoint_id or self.endpoint_id)

    def postmaster(self, branch_id: str | None = None) -> psutil.Process:
        """Return the Postgres that runs on the branch."""
        return postmaster_in(self.stack.data_dir(branch_id or self.branch_id))

    def sql(self, statement: str, *, endpoint_id: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement on the compute. Returns the rows, if any."""
        with self.compute(endpoint_id) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def locked(self, branch_id: str | None = None) -> "contextlib.AbstractContextManager[None]":
        """Hold the branch's lock, so that operations on it are held half-way."""
        return locked(self.stack, branch_id or self.branch_id)


@contextlib.contextmanager
def locked(stack: Stack, branch_id: str) -> Iterator[None]:
    descriptor = os.open(stack.state_dir / "locks" / branch_id, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        wait_for(lambda: _lock(descriptor), f"the lock of {branch_id}")
        yield
    finally:
        os.close(descriptor)


def wanted(branch_id: str, attributes: dict[str, Any] | None = None) -> Any:
    """Return the body of a request to create an endpoint."""
    return {"endpoint": {"branch_id": branch_id, "type": "read_write", **(attributes or {})}}


def refusal(response: requests.Response) -> tuple[int, str]:
    """Return the status and message of an error, which must have the API's form."""
    assert response.headers["Content-Type"].startswith("application/json"), response.text
    body = response.json()
    assert set(body) == {"request_id", "code", "message", "errors"}, body
    assert all(isinstance(body[name], str) for name in ("request_id", "code", "message")), body
    assert all(set(one) == {"field", "code", "message"} for one in body["errors"]), body
    assert body["message"]
    return response.status_code, body["message"]


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
