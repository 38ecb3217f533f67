"""`python -m tests.benchmarks.operations`: the cost of recording the steps of operations.

These are measured alternately, so that other load affects all alike: the end of a wake's operation
with and without its steps, and with its event; whole wakes; and filtered pages of a project with
100 operations and of one with 1,000,000, whose rows are written directly into the database.
"""

import json
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import django
import psycopg

from tests.benchmarks.api import time_request
from tests.benchmarks.start import report
from tests.benchmarks.streams import run as measure_streams
from tests.benchmarks.wake import time_wake
from tests.support.client import Client
from tests.support.stack import Stack, new_state_dir, running_stack

ENDS, WAKES, PAGES = 500, 40, 100
FEW, MANY, AT_ONCE = 100, 1_000_000, 100_000
# The entries of each list. Rare ones are equally many in both projects.
LIMIT, RARE = 20, 5
# Milliseconds that the steps may add to a wake, and how much slower the large project may be.
MOST_OF_A_WAKE, MOST_OF_A_PAGE = 1.0, 1.2

# Kinds of operations in turn, all of them within any hundred rows. The oldest five are cancelled.
ROWS = """
INSERT INTO controlplane_operation (id, project_id, branch_id, endpoint_id, action, status, chain,
    initiator_type, resources, details, failures_count, created_at, updated_at, dispatched_at)
SELECT gen_random_uuid(), %(project)s::text, %(branch)s::text, %(endpoint)s::text,
    (ARRAY['start_compute', 'suspend_compute', 'apply_config'])[1 + n %% 3],
    CASE WHEN n > %(last)s::int - 5 THEN 'cancelled' WHEN n %% 4 = 0 THEN 'failed'
        ELSE 'finished' END,
    md5(%(project)s::text || n / 4)::uuid, (ARRAY['user', 'client', 'idleness'])[1 + n %% 3],
    '{}', '{}', 0, at, at, at
FROM (
    SELECT n, now() - n * interval '1 second' AS at
    FROM generate_series(%(first)s::int, %(until)s::int) n
) times
"""
END = """
UPDATE controlplane_operation SET status = 'finished', updated_at = now() WHERE id = %(id)s
"""
END_WITH_STEPS = """
UPDATE controlplane_operation SET status = 'finished', updated_at = now(), steps = %(steps)s
WHERE id = %(id)s
"""
EVENT = """
INSERT INTO controlplane_event (account_id, type, project_id, branch_id, endpoint_id,
    operation_ids, actor_type, actor_name, api_key_id, address, at, summary, changes)
SELECT p.account_id, 'operation.finished', p.id, o.branch_id, o.endpoint_id, ARRAY[o.id],
    'client', 'neondb_owner', NULL, '127.0.0.1', now(), 'start_compute has finished', '{}'
FROM controlplane_operation o JOIN controlplane_project p ON p.id = o.project_id
WHERE o.id = %(id)s
"""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        for measure in MEASURES:
            measure(stack)


def measure_wakes(stack: Stack) -> None:
    """Measure what steps and events add to a wake, and a whole wake."""
    client = stack.client()
    created = client.new_project(name="wakes")
    path = f"/projects/{created['project']['id']}"
    endpoint = f"{path}/endpoints/{created['endpoints'][0]['id']}"
    uri = created["connection_uris"][0]["connection_uri"]
    client.finish(client.post(endpoint + "/suspend"))
    wakes = []
    for _ in range(WAKES):
        wakes.append(time_wake(uri))
        client.finish(client.post(endpoint + "/suspend"))
    report("wake, steps and events included", wakes)
    newest = client.get(path + "/operations", action="start_compute", limit=1)["operations"][0]
    steps = client.get(f"{path}/operations/{newest['id']}")["operation"]["steps"]
    recorded = recording_ms(len(steps) - 2)
    with stack.database() as connection:
        plain, with_steps, with_event = ends_ms(connection, newest["id"], json.dumps(steps))
    print(f"{len(steps)} steps recorded in memory: {recorded:.3f} ms")
    print(
        f"the end of an operation, p50: {plain:.3f} ms; with its steps {with_steps - plain:+.3f} ms"
    )
    print(f"with an event as well {with_event - with_steps:+.3f} ms")
    added = recorded + with_steps - plain
    print(f"a wake gains {added:.3f} ms by its steps (target: {MOST_OF_A_WAKE:g} ms)")


def recording_ms(parts: int) -> float:
    """Return the milliseconds to record an attempt with so many parts and to convert it to JSON."""
    from controlplane.compute.steps import step
    from controlplane.models import Operation
    from controlplane.operations import step_history

    operation = Operation(id=uuid.uuid4())

    def attempt() -> None:
        with step_history.recording_attempt(operation):
            for _ in range(parts):
                with step("starting"):
                    pass
            json.dumps(step_history.ended(operation, operation.created_at))

    return statistics.median(times_of(attempt) for _ in range(ENDS))


def ends_ms(
    connection: "psycopg.Connection[tuple[Any, ...]]", operation_id: str, steps: str
) -> tuple[float, float, float]:
    """Return the medians of an operation's last transaction: without steps, with steps, with an
    event too."""
    values = {"id": operation_id, "steps": steps}

    def transaction(*statements: str) -> Callable[[], None]:
        def run() -> None:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode(), values)

        return run

    kinds = (
        transaction(END),
        transaction(END_WITH_STEPS),
        transaction(END_WITH_STEPS, EVENT),
    )
    times: list[list[float]] = [[] for _ in kinds]
    for _ in range(ENDS):
        for kind, of_kind in zip(kinds, times, strict=True):
            of_kind.append(times_of(kind))
    plain, with_steps, with_event = map(statistics.median, times)
    return plain, with_steps, with_event


def times_of(work: Callable[[], object]) -> float:
    """Return the milliseconds that it takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure_pages(stack: Stack) -> None:
    """Measure filtered pages of a small project and of a large one."""
    client = stack.client()
    projects = [fill(stack, client, size) for size in (FEW, MANY)]
    print(f"{'page':<44}{FEW:>12}{MANY:>12}{'ratio':>8}")
    worst = 0.0
    for name in projects[0]:
        found = [len(client.get(paths[name])["operations"]) for paths in projects]
        assert found[0] == found[1] > 0, (name, found)
        times: list[list[float]] = [[] for _ in projects]
        for _ in range(PAGES):
            for paths, of_project in zip(projects, times, strict=True):
                of_project.append(time_request(client, paths[name]))
        small, large = map(statistics.median, times)
        worst = max(worst, large / small)
        print(f"{name:<44}{small:>9.2f} ms{large:>9.2f} ms{large / small:>8.2f}")
    print(f"the worst is {worst:.2f} times as slow (target: {MOST_OF_A_PAGE:g})")


def fill(stack: Stack, client: Client, size: int) -> dict[str, str]:
    """Create a project with so many operations. Returns the addresses to request, by name."""
    created = client.new_project(name=f"{size} operations")
    values: dict[str, Any] = {
        "project": created["project"]["id"],
        "branch": created["branch"]["id"],
        "endpoint": created["endpoints"][0]["id"],
        "last": size,
    }
    with stack.database() as connection, quick(connection):
        connection.execute(
            "DELETE FROM controlplane_operation WHERE project_id = %(project)s", values
        )
        for first in range(1, size + 1, AT_ONCE):
            part = {"first": first, "until": min(first + AT_ONCE - 1, size)}
            connection.execute(ROWS, {**values, **part})
    with stack.database() as connection:
        connection.execute("VACUUM ANALYZE controlplane_operation")
        row = connection.execute(
            "SELECT chain, min(created_at), max(created_at) FROM controlplane_operation"
            " WHERE project_id = %(project)s GROUP BY chain HAVING count(*) = 4"
            " ORDER BY max(created_at) DESC LIMIT 1",
            values,
        ).fetchone()
        assert row is not None
    return paths_of(values, chain=row[0], since=row[1], until=row[2])


@contextmanager
def quick(connection: "psycopg.Connection[tuple[Any, ...]]") -> Iterator[None]:
    """Disable triggers while the block lasts: they would send a million notifications."""
    connection.execute("SET session_replication_role = replica")
    yield
    connection.execute("SET session_replication_role = origin")


def paths_of(values: dict[str, Any], **found: Any) -> dict[str, str]:
    list_of = f"/projects/{values['project']}/operations?limit={LIMIT}"
    endpoint, branch = f"endpoint_id={values['endpoint']}", f"branch_id={values['branch']}"
    times = [found[name].isoformat().replace("+00:00", "Z") for name in ("since", "until")]
    queries: Sequence[str] = (
        "",
        "action=start_compute",
        "action=start_compute,suspend_compute,apply_config",
        "status=failed",
        "status=cancelled",
        "status=scheduling,running,cancelled",
        "initiator=client",
        "initiator=user,client,expiry",
        endpoint,
        f"{endpoint}&status=cancelled",
        branch,
        f"{branch}&action=apply_config&initiator=idleness",
        f"{endpoint}&{branch}&status=failed",
        f"chain_id={found['chain']}",
        f"since={times[0]}&until={times[1]}",
        f"status=failed,finished&until={times[1]}",
        "action=apply_config&status=cancelled,finished&initiator=idleness",
    )
    return {named(query, values, found): f"{list_of}&{query}" for query in queries}


def named(query: str, values: dict[str, Any], found: dict[str, Any]) -> str:
    for name in ("endpoint", "branch"):
        query = query.replace(f"_id={values[name]}", "")
    query = query.replace(f"_id={found['chain']}", "")
    parts = [part.split("=")[0] if "T" in part else part for part in query.split("&")]
    return "&".join(parts) or "all"


MEASURES: Sequence[Callable[[Stack], None]] = (measure_streams, measure_wakes, measure_pages)


if __name__ == "__main__":
    main()
