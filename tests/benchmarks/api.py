"""`python -m tests.benchmarks.api`: what reads cost, for small and for large projects.

The rows are written straight into the database, as 100,000 operations take hours to run;
the requests go through HTTP like everyone's. Small and large are asked in turns.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

from tests.support.client import Client
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS = 200
SIZES = ((10, 100), (1000, 100_000))  # endpoints, operations

ENDPOINTS = """
WITH made AS (
    INSERT INTO controlplane_branch (id, project_id, name, current_state, "default", protected,
        catalog_revision, applied_catalog_revision,
        created_at, updated_at, state_changed_at)
    SELECT 'br-bench-' || %(prefix)s || '-' || n, %(project)s, 'branch ' || n, 'ready', false,
        false, 0, 0, now(), now(), now()
    FROM generate_series(1, %(count)s) n
    RETURNING id, project_id)
INSERT INTO controlplane_endpoint (id, project_id, branch_id, type, autoscaling_limit_min_cu,
    autoscaling_limit_max_cu, settings, pooler_enabled, pooler_mode, disabled,
    passwordless_access, provisioner, suspend_timeout_seconds, current_state, last_active,
    created_at, updated_at)
SELECT 'ep' || substr(id, 3), project_id, id, 'read_write', 0.25, 1, '{"pg_settings": {}}',
    false, 'transaction', false, true, 'k8s-pod', 0, 'idle', now(), now(), now()
FROM made
"""
OPERATIONS = """
INSERT INTO controlplane_operation (id, project_id, action, status, chain, resources, details,
    failures_count, created_at, updated_at, dispatched_at)
SELECT gen_random_uuid(), %(project)s, 'start_compute', 'finished', gen_random_uuid(), '{}',
    '{}', 0, at, at, at
FROM (SELECT now() - n * interval '1 second' AS at FROM generate_series(1, %(count)s) n) times
"""


@dataclass(frozen=True)
class Project:
    endpoints: int
    operations: int
    paths: dict[str, str]


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        client = stack.client()
        projects = [fill(stack, client, *size) for size in SIZES]
        with stack.database() as connection:
            connection.execute("ANALYZE")
        medians: dict[str, list[float]] = {}
        print(f"{'request':<22}{'endpoints':>10}{'operations':>12}{'p50 ms':>9}{'p95 ms':>9}")
        for name in projects[0].paths:
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


def fill(stack: Stack, client: Client, endpoints: int, operations: int) -> Project:
    """A project of that many endpoints and operations, and what to ask of it."""
    created = client.new_project(name=f"{endpoints} endpoints")
    project_id = created["project"]["id"]
    with stack.database() as connection:
        values: dict[str, Any] = {"project": project_id, "prefix": f"b{endpoints}"}
        connection.execute(ENDPOINTS, {**values, "count": endpoints - 1})
        connection.execute(OPERATIONS, {**values, "count": operations - 2})
    path = f"/projects/{project_id}"
    newest = client.get(path + "/operations", limit=1)["operations"][0]["id"]
    return Project(
        endpoints,
        operations,
        {
            "get operation": f"{path}/operations/{newest}",
            "list 100 operations": f"{path}/operations?limit=100",
            "list endpoints": f"{path}/endpoints",
        },
    )


def time_request(client: Client, path: str) -> float:
    began = time.perf_counter()
    assert client.call("GET", path).ok
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
