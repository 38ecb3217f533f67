"""`python -m tests.benchmarks.start`: how much longer a start through the API takes than Postgres's
own.

Measured alternately on the same data directory: a bare `postgres` from its spawn to the answer to
its first query, and POST `start` until GET returns `current_state: active`.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg

from tests.support.client import Client
from tests.support.processes import held_still
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS = 20
TARGET = 60  # median milliseconds in addition to the bare Postgres


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        client = stack.client()
        project = client.new_project(name="benchmark")
        endpoint = project["endpoints"][0]
        path = f"/projects/{project['project']['id']}/endpoints/{endpoint['id']}"
        client.finish(client.post(path + "/suspend"))
        bare, through_api = [], []
        for _ in range(ROUNDS):
            with held_still(stack, "worker"):
                bare.append(time_bare(stack, endpoint))
            through_api.append(time_api(client, path))
        report("bare postgres", bare)
        report("through the API", through_api)
        beyond = statistics.median(through_api) - statistics.median(bare)
        print(f"beyond bare, median: {beyond:.0f} ms (target: at most {TARGET} ms)")


def time_bare(stack: Stack, endpoint: dict[str, str]) -> float:
    """Return the milliseconds from spawn to the first answer, with the endpoint's own
    configuration. The worker must be stopped meanwhile, because it ends what runs on an idle
    endpoint's branch."""
    return time_bare_in(stack, endpoint, stack.data_dir(endpoint["branch_id"]))


def time_bare_in(stack: Stack, endpoint: dict[str, str], data: Path) -> float:
    """Return what `time_bare` does, for a copy `data` of the data of the endpoint's branch."""

    def ask() -> bool:
        try:
            with stack.compute(endpoint["id"]) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    return time_process(stack, endpoint, data, ask)


def time_process(
    stack: Stack,
    endpoint: dict[str, str],
    data: Path,
    ask: Callable[[], bool],
    options: Mapping[str, object] = MappingProxyType({}),
) -> float:
    """Return the milliseconds from the spawn of a bare Postgres on `data` until `ask` returns True,
    with the endpoint's own configuration except for the settings `options`."""
    command = bare_command(data, stack.data_dir(endpoint["branch_id"]).parent / "postgresql.conf")
    owner = data.stat()  # Postgres runs as the directory's owner
    sockets = stack.state_dir / "sockets" / endpoint["id"]
    sockets.mkdir(mode=0o700, exist_ok=True)
    os.chown(sockets, owner.st_uid, owner.st_gid)
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in options.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=owner.st_uid,
        group=owner.st_gid,
    )
    while not ask():
        assert process.poll() is None, "the bare Postgres ended"
        time.sleep(0.001)
    took = (time.perf_counter() - began) * 1000
    process.send_signal(2)
    process.wait()
    return took


def time_api(client: Client, path: str) -> float:
    """Return the milliseconds from POST start until the endpoint is active. Suspends it again
    afterwards."""
    began = time.perf_counter()
    client.post(path + "/start")
    while client.get(path)["endpoint"]["current_state"] != "active":
        time.sleep(0.001)
    took = (time.perf_counter() - began) * 1000
    client.finish(client.post(path + "/suspend"))
    return took


def bare_command(data: Path, config_file: Path) -> list[str | Path]:
    """The command that the service itself runs, read from the directory's postmaster.opts."""
    program = (data / "postmaster.opts").read_text().split(" ", 1)[0]
    return [program, "-D", data, "-c", f"config_file={config_file}"]


def report(name: str, samples: list[float]) -> None:
    ordered = sorted(samples)
    p95 = ordered[round(0.95 * (len(ordered) - 1))]
    print(
        f"{name:<16} min {ordered[0]:6.0f}  median {statistics.median(ordered):6.0f}  "
        f"p95 {p95:6.0f}  max {ordered[-1]:6.0f} ms  ({len(ordered)} runs)"
    )


if __name__ == "__main__":
    main()
