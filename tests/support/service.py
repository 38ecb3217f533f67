"""A service of a test's own, which can be killed partly or completely and started again."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from controlplane.compute.host.accounts import Account, own_account, running_as
from tests.support.client import ENDED
from tests.support.processes import is_alive, kill_with_children, postmaster_in, processes_of
from tests.support.project import Project
from tests.support.stack import StartedStack, running_stack
from tests.support.waiting import wait_for


class Service:
    """A `manage.py up` on a state directory, and a client of an account that follows its port."""

    def __init__(self, state_dir: Path, **environment: str) -> None:
        self.state_dir = state_dir
        self._environment: dict[str, Any] = environment
        self._running: AbstractContextManager[StartedStack] | None = None
        self.up()
        self.client = self.stack.client()

    def up(self) -> None:
        """Start it, possibly again. The client then uses the new port."""
        self._running = running_stack(self.state_dir, **self._environment)
        self.stack = self._running.__enter__()
        if hasattr(self, "client"):
            self.client.api_url = self.stack.api_url

    def replace_environment(self, **environment: str) -> None:
        """The environment of the next start."""
        self._environment = environment

    def down(self) -> None:
        """Stop it as Ctrl-C does, if it runs."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def processes(self, part: str) -> list[psutil.Process]:
        """Return the processes of a part of the service, parents first."""
        return processes_of(self.stack, part)

    def kill(self, part: str, *, which: int = 0) -> None:
        """Send SIGKILL, by default to the parent. Returns once the process is dead."""
        process = self.processes(part)[which]
        process.kill()
        process.wait(10)

    def kill_everything(self) -> None:
        """Send SIGKILL to every process that uses the state directory, including computes."""
        doomed = [psutil.Process(self.stack.pid)]
        for pid in self.postmasters().values():
            with suppress(psutil.NoSuchProcess):
                doomed.append(psutil.Process(pid))
        kill_with_children(doomed)
        self.stack.process.wait(10)

    def postmasters(self) -> dict[str, int]:
        """Return the process ids of the running computes, by branch."""
        found = {}
        for directory in self.state_dir.joinpath("branches").glob("br-*"):
            with suppress(FileNotFoundError, IndexError, psutil.NoSuchProcess):
                process = postmaster_in(directory / "data")
                if is_alive(process):
                    found[directory.name] = process.pid
        return found

    def answers(self, url: str | None = None) -> bool:
        """Return whether the address answers; by default, whether the whole service is healthy."""
        return self.stack.answers(url)

    def project(self) -> Project:
        return Project.create(self.stack, self.client)

    def operations(self) -> list[dict[str, Any]]:
        with self.stack.database() as connection:
            cursor = connection.execute(
                "SELECT id::text, project_id, branch_id, action, status, error"
                " FROM controlplane_operation ORDER BY created_at"
            )
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def settle(self, *, timeout: float = 60.0) -> None:
        """Wait until every operation has ended, and check that the states in the API are right."""

        def is_settled() -> bool:
            if not self.answers():
                return False
            return all(o["status"] in ENDED for o in self.operations())

        wait_for(is_settled, "the end of all operations", timeout=timeout)
        for operation in self.operations():
            assert (operation["status"] != "finished") == bool(operation["error"]), operation
        wait_for(lambda: self.said() == self.postmasters().keys(), "the states to be right")
        # The round that removes deleted data may have just begun.
        wait_for(
            lambda: not list(self.state_dir.joinpath("branches").glob(".br-*")),
            "the removal of unfinished directories",
        )

    def said(self) -> set[str]:
        """Return the branches whose endpoint is active in the API. No endpoint may be changing."""
        active = set()
        for project in self.client.get("/projects", limit=400)["projects"]:
            for endpoint in self.client.get(f"/projects/{project['id']}/endpoints")["endpoints"]:
                path = f"/projects/{project['id']}/endpoints/{endpoint['id']}"
                assert "pending_state" not in self.client.get(path)["endpoint"]
                if endpoint["current_state"] == "active":
                    active.add(endpoint["branch_id"])
        return active


@contextmanager
def stranger(beside: Path) -> Iterator[psutil.Process]:
    """A process of the account that owns `beside`, which belongs to no compute and must not be
    ended."""
    owner = beside.stat()
    account = Account(owner.st_uid, owner.st_gid) if owner.st_uid else own_account()
    child = subprocess.Popen(["sleep", "600"], **running_as(account))
    try:
        yield psutil.Process(child.pid)
        assert child.poll() is None, "a stranger was ended"
    finally:
        child.kill()
        child.wait()
