"""`python -m tests.benchmarks.wake`: the time from connecting to an idle endpoint until the first
row.

Measured alternately on the same data directory: a bare `postgres` from its spawn to the answer to
its first query, and a client's connection through the proxy, including TLS and SCRAM. Then as many
of both at once as `TOGETHER` says.

The parts of a wake's time come from the steps of its operation, so they are what users see.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg

from tests.benchmarks.start import report, time_bare
from tests.support.processes import held_still
from tests.support.project import Project
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS = 50
TOGETHER = 20
ROUNDS_TOGETHER = 5
# The parts of one wake in order, in milliseconds.
Parts = dict[str, float]


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        client = stack.client()
        project = Project.create(stack, client, name="benchmark")
        project.suspend()
        measure_one(stack, project)
        others = [Project.create(stack, client) for _ in range(TOGETHER - 1)]
        for other in others:
            other.suspend()
        measure_together(stack, [project, *others])


def measure_one(stack: Stack, project: Project) -> None:
    bare, woken, parts = [], [], []
    for _ in range(ROUNDS):
        with held_still(stack, "worker"):
            bare.append(time_bare(stack, project.endpoint()))
        began = time.time()
        woken.append(time_wake(uri_of(project)))
        parts.append(parts_of(project, began, woken[-1]))
        project.suspend()
    report("bare postgres", bare)
    report("wake on connect", woken)
    for name in parts[0]:
        print(f"  {name:<40} {statistics.median(one[name] for one in parts):6.1f} ms")
    show_ratio("p50", bare, woken, 0.5, target=1.5)
    show_ratio("p95", bare, woken, 0.95, target=2)


def measure_together(stack: Stack, projects: list[Project]) -> None:
    endpoints = [project.endpoint() for project in projects]
    bare: list[float] = []
    woken: list[float] = []
    for _ in range(ROUNDS_TOGETHER):
        with held_still(stack, "worker"):
            bare += at_once(lambda endpoint: time_bare(stack, endpoint), endpoints)
        woken += at_once(time_wake, [uri_of(project) for project in projects])
        for project in projects:
            project.suspend()
    report(f"{len(projects)} bare", bare)
    report(f"{len(projects)} wakes", woken)
    show_ratio("at once, p50", bare, woken, 0.5, target=1.5)


def uri_of(project: Project) -> str:
    return str(project.created["connection_uris"][0]["connection_uri"])


def time_wake(uri: str) -> float:
    """Return the milliseconds from connecting until the first row."""
    began = time.perf_counter()
    with psycopg.connect(uri, hostaddr="127.0.0.1") as connection:
        connection.execute("SELECT 1").fetchone()
        return (time.perf_counter() - began) * 1000


def parts_of(project: Project, began: float, took: float) -> Parts:
    """Return the parts of the time of a wake that began at `began` (wall clock) and has just
    ended."""
    operation = project.operation(project.operations()[0]["id"])
    assert operation["action"] == "start_compute", operation
    steps = {step["name"]: step for step in operation["steps"]}
    spawned, ready = steps["starting"]["started_at"], steps["starting"]["finished_at"]
    moments = {
        "TLS, password, and the start's row": moment(steps["queued"]["started_at"]),
        "committed, and queued": moment(steps["picked_up"]["started_at"]),
        "read, locked, configured": moment(spawned),
        "Postgres starts": moment(ready),
        "published": moment(steps["publishing"]["finished_at"]),
        "told, joined, first row": began + took / 1000,
    }
    parts, before = {}, began
    for name, at in moments.items():
        parts[name], before = (at - before) * 1000, at
    return parts


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def at_once(measure: Callable[[Any], float], these: list[Any]) -> list[float]:
    with ThreadPoolExecutor(len(these)) as threads:
        return list(threads.map(measure, these))


def show_ratio(
    name: str, bare: list[float], woken: list[float], share: float, *, target: float
) -> None:
    def quantile(samples: list[float]) -> float:
        return sorted(samples)[round(share * (len(samples) - 1))]

    ratio = quantile(woken) / quantile(bare)
    print(f"{name}: {ratio:.2f} times bare (target: at most {target:g} times)")


if __name__ == "__main__":
    main()
