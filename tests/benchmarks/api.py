"""`python -m tests.benchmarks.api`: the cost of a list of 1,000 endpoints, compared with bare
Django, which answers the same bytes from memory; and that of one project, compared with bare Django
that reads its row.

The rows are written directly into the database. Both servers are asked alternately over HTTP, one
request at a time, each over its own connection.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.filling import add_branches, analyze
from tests.support.client import Client
from tests.support.stack import ROOT, Stack, free_port, new_state_dir, running_stack
from tests.support.waiting import wait_for

ENDPOINTS = 1000
ROUNDS = 50
WORKERS = "4"


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir, WEB_CONCURRENCY=WORKERS) as stack:
        client = stack.client()
        path = fill(stack, client)
        with bare_django(stack, client.call("GET", path).text) as bare:
            asked = Client(bare, client.key)
            compare(f"list of {ENDPOINTS} endpoints", client, path, asked, "/", target=4)
            project = path.removesuffix("/endpoints")
            row = f"/row/{project.rpartition('/')[2]}"
            compare("one project", client, project, asked, row, target=2.5)


def compare(
    name: str, client: Client, path: str, bare: Client, bare_path: str, *, target: float
) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        ours.append(time_request(client, path))
        theirs.append(time_request(bare, bare_path))
    mine, bares = statistics.median(ours), statistics.median(theirs)
    print(
        f"{name}: p50 {mine:.2f} ms, bare Django {bares:.2f} ms,"
        f" {mine / bares:.2f} times (target: at most {target:g})"
    )


def fill(stack: Stack, client: Client) -> str:
    """Create a project with so many endpoints, and return the path of their list."""
    created = client.new_project(name="benchmark")
    project_id, parent_id = created["project"]["id"], created["branch"]["id"]
    add_branches(stack, project_id, ENDPOINTS - 1, parent_id=parent_id, endpoint_on_every=1)
    analyze(stack)
    return f"/projects/{project_id}/endpoints"


@contextmanager
def bare_django(stack: Stack, body: str) -> Iterator[str]:
    """Run `tests.benchmarks.bare` on as many workers of the same kind as the API. Yields its
    address, which answers with `body`."""
    file = stack.state_dir / "benchmark.json"
    file.write_text(body)
    port = free_port()
    server = subprocess.Popen(
        [
            *(Path(sys.executable).with_name("gunicorn"), "tests.benchmarks.bare:application"),
            *("--bind", f"127.0.0.1:{port}", "--workers", WORKERS, "--no-control-socket"),
            *("--worker-class", "gevent"),
            *("--worker-connections", "8192", "--keep-alive", "75", "--graceful-timeout", "1"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "BENCHMARK_ANSWER": str(file),
            "BENCHMARK_DATABASE": str(stack.state_dir / "sockets" / "metadata"),
            "PYTHONPATH": str(ROOT),
        },
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: stack.answers(f"{address}/"), "bare Django", timeout=30)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def time_request(client: Client, path: str) -> float:
    """Return the duration in milliseconds."""
    began = time.perf_counter()
    assert client.call("GET", path).ok
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
