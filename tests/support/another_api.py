"""Starts further processes of the API beside those of a running service, as an operator may."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.client import Client
from tests.support.stack import NOTHING_KEPT, ROOT, Stack, free_port
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class AnotherApi:
    """A running process of the API on the service's database."""

    api_url: str
    process: "subprocess.Popen[bytes]"

    def client(self, key: str) -> Client:
        return Client(self.api_url, key)


@contextmanager
def another_api(
    stack: Stack, *, options: str = "", log: Path | None = None, **environment: str
) -> Iterator[AnotherApi]:
    """Start it by the command of the Procfile with these options and variables as well. Its log
    goes to the file `log`. It is killed at the end."""
    port = free_port()
    variables = {"PERCH_STATE_DIR": str(stack.state_dir), "API_PORT": str(port), **environment}
    process = started_by_procfile("api", options=options, log=log, **variables)
    made = AnotherApi(f"http://127.0.0.1:{port}/api/v2", process)
    try:
        wait_for(lambda: stack.answers(f"{made.api_url}/openapi.json"), "another API")
        yield made
    finally:
        kill(made)


def started_by_procfile(
    name: str, *, options: str = "", log: Path | None = None, **environment: str
) -> "subprocess.Popen[bytes]":
    """Start a process by its line of the Procfile and further options, in a process group of its
    own. What it prints goes to the file `log`."""
    line = next(
        line.removeprefix(f"{name}: ")
        for line in (ROOT / "Procfile").read_text().splitlines()
        if line.startswith(f"{name}: ")
    )
    with open(log or os.devnull, "wb") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line} {options}"],
            cwd=ROOT,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **NOTHING_KEPT,
                **environment,
            },
            stdout=output,
            stderr=output,
            # gunicorn's worker notices the end of its parent only after a while.
            start_new_session=True,
        )


def is_open(port: int) -> bool:
    """Whether a server accepts connections to the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill(api: AnotherApi) -> None:
    """Send SIGKILL to all its processes at once."""
    if api.process.poll() is None:
        os.killpg(api.process.pid, 9)
        api.process.wait(10)
