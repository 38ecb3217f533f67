"""`python -m tests.benchmarks.api [sizes] [lists] [rates] [crowd]`: the cost of reads.

sizes: for a small and for a large project. lists: 1,000 endpoints, compared with bare Django, which
answers the same bytes from memory. rates: requests per second of the read calls, compared with bare
Django that answers from memory, or with rows from psycopg. crowd: for an account with ten projects,
before and after there are 10,000 projects of others.

The rows are written directly into the database, because 100,000 operations would run for hours. The
requests use HTTP. Measurements that are compared alternate.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.filling import add_branches, add_crowd, add_operations, analyze
from tests.benchmarks.load import requests_per_second
from tests.support.client import Client
from tests.support.stack import ROOT, Stack, free_port, new_state_dir, running_stack
from tests.support.waiting import wait_for

ROUNDS = 200
SIZES = ((10, 100), (1000, 100_000))  # endpoints, operations
WORKERS, CONNECTIONS = 4, 16
# The number of measurements of each server and call, and the seconds that each lasts.
TURNS, TURN = 5, 1.0
OTHERS, ENDPOINTS_OF_OTHERS = 10_000, 5
# What psycopg alone fetches for a call: the rows, joined with their owners.
OWNED = """
FROM controlplane_project p JOIN controlplane_account a ON a.id = p.account_id
JOIN controlplane_apikey k ON k.account_id = a.id JOIN controlplane_region r ON r.id = p.region_id
"""
ROWS = {
    "get project": f"SELECT p.*, r.host {OWNED} WHERE p.id = %(project)s",
    "list projects": f"SELECT p.*, r.host {OWNED} ORDER BY p.created_at DESC LIMIT 10",
    "get endpoint": f"SELECT e.*, r.host {OWNED} JOIN controlplane_endpoint e ON"
    " e.project_id = p.id WHERE p.id = %(project)s AND e.id = %(endpoint)s",
    "list endpoints": f"SELECT e.*, r.host {OWNED} JOIN controlplane_endpoint e ON"
    " e.project_id = p.id WHERE p.id = %(project)s ORDER BY e.created_at",
    "list branches": f"SELECT b.* {OWNED} JOIN controlplane_branch b ON"
    " b.project_id = p.id WHERE p.id = %(project)s ORDER BY b.updated_at DESC",
    "get operation": f"SELECT o.* {OWNED} JOIN controlplane_operation o ON"
    " o.project_id = p.id WHERE p.id = %(project)s AND o.id = %(operation)s",
    "list 10 operations": f"SELECT o.* {OWNED} JOIN controlplane_operation o ON"
    " o.project_id = p.id WHERE p.id = %(project)s ORDER BY o.created_at DESC LIMIT 10",
    "list 100 operations": f"SELECT o.* {OWNED} JOIN controlplane_operation o ON"
    " o.project_id = p.id WHERE p.id = %(project)s ORDER BY o.created_at DESC LIMIT 100",
}


@dataclass(frozen=True)
class Project:
    endpoints: int
    operations: int
    # The parameters of the statements of ROWS.
    ids: dict[str, str]
    paths: dict[str, str]


def main(wanted: Sequence[str]) -> None:
    chosen = [part for name, part in PARTS.items() if name in wanted or not wanted]
    workers = str(WORKERS)
    with new_state_dir() as state_dir, running_stack(state_dir, WEB_CONCURRENCY=workers) as stack:
        client = stack.client()
        projects = [fill(stack, client, *size) for size in SIZES]
        analyze(stack)
        for part in chosen:
            part(stack, client, projects)


def sizes(stack: Stack, client: Client, projects: Sequence[Project]) -> None:
    medians: dict[str, list[float]] = {}
    print(f"{'request':<22}{'endpoints':>10}{'operations':>12}{'p50 ms':>9}{'p95 ms':>9}")
    for name in ("get operation", "list 100 operations", "list endpoints"):
        samples: list[list[float]] = [[] for _ in projects]
        for _ in range(ROUNDS if name != "list endpoints" else ROUNDS // 5):
            for project, times in zip(projects, samples, strict=True):
                times.append(time_request(client, project.paths[name]))
        for project, times in zip(projects, samples, strict=True):
            times.sort()
            p50, p95 = statistics.median(times), times[round(0.95 * (len(times) - 1))]
            medians.setdefault(name, []).append(p50)
            print(
                f"{name:<22}{project.endpoints:>10}{project.operations:>12}{p50:>9.2f}{p95:>9.2f}"
            )
    for name, (small, large) in medians.items():
        print(f"{name}: large costs {large / small:.2f} times small")


def lists(stack: Stack, client: Client, projects: Sequence[Project]) -> None:
    """Compare for 1,000 endpoints, one request at a time, each server with its own connection."""
    name, large = "list endpoints", projects[-1]
    with bare_django(stack, client, large, [name]) as bare:
        asked = Client(bare, client.key)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS // 4):
            ours.append(time_request(client, large.paths[name]))
            theirs.append(time_request(asked, "/memory/list%20endpoints"))
    mine, bares = statistics.median(ours), statistics.median(theirs)
    print(
        f"list of {large.endpoints} endpoints: p50 {mine:.2f} ms, bare Django {bares:.2f} ms, ",
        end="",
    )
    print(f"{mine / bares:.2f} times")


def rates(stack: Stack, client: Client, projects: Sequence[Project]) -> None:
    """Measure the three alternately, and print the median of the ratios within each turn."""
    small = projects[0]
    header = {"Authorization": f"Bearer {client.key}"}
    print(
        f"{'requests per second':<22}{'Perch':>9}{'rows':>9}{'memory':>9}"
        f"{'of rows':>9}{'of memory':>11}"
    )
    with bare_django(stack, client, small, list(ROWS)) as bare:
        for name in ROWS:
            quoted = name.replace(" ", "%20")
            urls = [
                stack.api_url + small.paths[name],
                f"{bare}/rows/{quoted}",
                f"{bare}/memory/{quoted}",
            ]
            turns = [
                [
                    requests_per_second(url, header, connections=CONNECTIONS, seconds=TURN)
                    for url in urls
                ]
                for _ in range(TURNS)
            ]
            ours, rows, memory = (statistics.median(column) for column in zip(*turns, strict=True))
            of_rows = statistics.median(turn[0] / turn[1] for turn in turns)
            of_memory = statistics.median(turn[0] / turn[2] for turn in turns)
            print(
                f"{name:<22}{ours:>9.0f}{rows:>9.0f}{memory:>9.0f}{of_rows:>9.2f}{of_memory:>11.2f}"
            )


def crowd(stack: Stack, client: Client, projects: Sequence[Project]) -> None:
    """Time the calls of an account with ten projects, before and after the others' projects
    exist."""
    ten = stack.client()
    made = [ten.new_project(name=f"one of ten: {n}") for n in range(10)]
    paths = paths_of(ten, made[0]["project"]["id"])
    before = {name: median_time(ten, path) for name, path in paths.items()}
    add_crowd(stack, OTHERS, ENDPOINTS_OF_OTHERS)
    analyze(stack)
    print(f"{'an account of ten':<22}{'before ms':>11}{'after ms':>11}{'times':>8}")
    for name, path in paths.items():
        after = median_time(ten, path)
        print(f"{name:<22}{before[name]:>11.2f}{after:>11.2f}{after / before[name]:>8.2f}")


PARTS: dict[str, Callable[[Stack, Client, Sequence[Project]], None]] = {
    "sizes": sizes,
    "lists": lists,
    "rates": rates,
    "crowd": crowd,
}


@contextmanager
def bare_django(
    stack: Stack, client: Client, project: Project, names: Sequence[str]
) -> Iterator[str]:
    """Run `tests.benchmarks.bare` on as many workers of the same kind, with the API's answers to
    the calls. Yields its address."""
    told = stack.state_dir / "benchmark.json"
    metadata = stack.state_dir / "sockets" / "metadata"
    told.write_text(
        json.dumps(
            {
                "conninfo": f"host={metadata} user=perch dbname=perch",
                "bodies": {name: client.call("GET", project.paths[name]).text for name in names},
                "statements": {name: [ROWS[name], project.ids] for name in names},
            }
        )
    )
    port = free_port()
    server = subprocess.Popen(
        [
            *(Path(sys.executable).with_name("gunicorn"), "tests.benchmarks.bare:application"),
            *("--bind", f"127.0.0.1:{port}", "--workers", str(WORKERS), "--no-control-socket"),
            *("--worker-class", "controlplane.api.buffering_worker.BufferingWorker"),
            *("--worker-connections", "8192", "--keep-alive", "75"),
        ],
        cwd=ROOT,
        env={**os.environ, "BENCHMARK_ANSWERS": str(told), "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        first = names[0].replace(" ", "%20")
        wait_for(lambda: stack.answers(f"{address}/memory/{first}"), "bare Django", timeout=30)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def fill(stack: Stack, client: Client, endpoints: int, operations: int) -> Project:
    """Create a project with that many endpoints and operations. Returns it with the ids to ask
    for."""
    created = client.new_project(name=f"{endpoints} endpoints")
    project_id = created["project"]["id"]
    parent_id = created["branch"]["id"]
    add_branches(stack, project_id, endpoints - 1, parent_id=parent_id, endpoint_on_every=1)
    add_operations(stack, project_id, operations - 2)
    paths = paths_of(client, project_id)
    ids = {
        "project": project_id,
        "endpoint": paths["get endpoint"].rpartition("/")[2],
        "operation": paths["get operation"].rpartition("/")[2],
    }
    return Project(endpoints, operations, ids, paths)


def paths_of(client: Client, project_id: str) -> dict[str, str]:
    """Return the addresses of a project's read calls, by the names of ROWS."""
    path = f"/projects/{project_id}"
    newest = client.get(path + "/operations", limit=1)["operations"][0]["id"]
    endpoint = client.get(path + "/endpoints")["endpoints"][0]["id"]
    return {
        "get project": path,
        "list projects": "/projects",
        "get endpoint": f"{path}/endpoints/{endpoint}",
        "list endpoints": f"{path}/endpoints",
        "list branches": f"{path}/branches",
        "get operation": f"{path}/operations/{newest}",
        "list 10 operations": f"{path}/operations?limit=10",
        "list 100 operations": f"{path}/operations?limit=100",
    }


def median_time(client: Client, path: str) -> float:
    return statistics.median(time_request(client, path) for _ in range(ROUNDS // 2))


def time_request(client: Client, path: str) -> float:
    """Return the duration in milliseconds."""
    began = time.perf_counter()
    assert client.call("GET", path).ok
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main(sys.argv[1:])
