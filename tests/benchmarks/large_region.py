"""The part `region` of `tests.benchmarks.hosts`: what the metadata costs one host and one caller of
a region of one host and 10,000 endpoints, and of one of 100 hosts and 1,000,000 endpoints.

Only rows are made (`region_rows`), because what is measured reads no data directory: the statements
by which a proxy finds and wakes an endpoint, those of a worker's rounds, and the lists of the API.
Both databases are in one Postgres and are measured in turn, each by a process of its own. A part
that would change rows is rolled back.
"""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.region_rows import fill
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres
from tests.support.stack import ROOT, new_directory

SIZES = {"small": 1, "large": 100}  # hosts
TURNS, REPEATED = 3, 7
# The largest ratio that is accepted, and the milliseconds below which a difference does not count.
MOST, NOTHING = 1.5, 1.0
# Rounds that read no rows or act on the machine, and the sign of life, which is the host's own. Of
# those that look into computes, only what they read first is measured.
NOT_MEASURED = {
    *("suspend_idle_endpoints", "measure_sizes", "measure_nearly_full", "keep_history"),
    *("hear_of_cancels", "guard_disk", "end_strays", "hold_outbound", "end_unused_poolers"),
    *("follow_compute_logs", "write_lasting", "publish", "remove_moved_away"),
}
SCAN = re.compile(
    r"(Index Only Scan|Index Scan|Bitmap Index Scan|Seq Scan)[^\n]*? (?:using|on) (\w+)"
)


@dataclass
class Measured:
    """What a part costs: the milliseconds of its statements, of each repetition, and for each
    statement the scans of its plan."""

    milliseconds: list[float] = field(default_factory=list)
    plans: dict[str, list[str]] = field(default_factory=dict)


def main(*, hosts: int = SIZES["large"]) -> None:
    with new_directory() as scratch, bare_postgres(Programs(scratch)) as postgres:
        # What is written is thrown away. The cache holds the region's rows, as a server's would.
        postgres.start(
            shared_buffers="2GB",
            full_page_writes="off",
            max_wal_size="16GB",
            autovacuum="off",
            jit="off",
        )
        for name, count in {**SIZES, "large": hosts}.items():
            began = time.monotonic()
            endpoints = _made(postgres, name, count)
            seconds = time.monotonic() - began
            print(
                f"{name}: {count} hosts, {endpoints:,} endpoints, made in {seconds:.0f} s",
                flush=True,
            )
        found: dict[str, dict[str, Measured]] = {name: defaultdict(Measured) for name in SIZES}
        for _ in range(TURNS):
            for name in SIZES:
                for part, measured in _measure_in_a_process(postgres, name, scratch).items():
                    found[name][part].milliseconds += measured["milliseconds"]
                    found[name][part].plans.update(measured["plans"])
    report(found["small"], found["large"])


def _made(postgres: BarePostgres, name: str, hosts: int) -> int:
    postgres.execute(f"CREATE DATABASE {name}")
    environment = _environment(postgres, name, ROOT)
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0", "--settings", "controlplane.settings"],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return fill(environment["DATABASE_URL"], hosts=hosts, version=version("perch-postgres"))


def _measure_in_a_process(postgres: BarePostgres, name: str, scratch: Path) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(dir=scratch) as state_dir:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.large_region"],
            cwd=ROOT,
            env=_environment(postgres, name, Path(state_dir)),
            stdout=subprocess.PIPE,
            check=True,
        )
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def _environment(postgres: BarePostgres, name: str, state_dir: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    return {
        **known,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DATABASE_URL": f"host={postgres.directory} user=postgres dbname={name}",
        "PERCH_STATE_DIR": str(state_dir),
        "PERCH_SECRET_KEY": "of the benchmark",
        "PERCH_HOST_NAME": "h1",
        "PERCH_DATABASE_TIMEOUT": "60",
    }


def report(small: Mapping[str, Measured], large: Mapping[str, Measured]) -> None:
    print(f"{'part':<34}{'small ms':>10}{'large ms':>10}{'ratio':>7}  plans")
    for part in small:
        # The least: other processes of the machine delay the others.
        before, after = (min(one[part].milliseconds) for one in (small, large))
        ratio = after / before if before else 1.0
        is_slow = ratio > MOST and after - before > NOTHING
        changed = {
            sql: (small[part].plans.get(sql, []), scans)
            for sql, scans in large[part].plans.items()
            if scans != small[part].plans.get(sql)
        }
        words = f"{len(changed)} differ" if changed else "the same"
        mark = "  SLOWER" if is_slow else ""
        print(f"{part:<34}{before:>10.2f}{after:>10.2f}{ratio:>7.2f}  {words}{mark}")
        for sql, (was, scans) in changed.items():
            print(
                f"    {sql[:110]}…\n      small: {', '.join(was)}\n      large: {', '.join(scans)}"
            )


# In the process that measures


def parts() -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured, by name. Django is set up."""
    from django.test import Client

    from controlplane.compute import compute
    from controlplane.models import Account, Endpoint, Host
    from controlplane.models.connecting import PEERS, ROLES, ROUTE, STATE, USED
    from controlplane.operations import history, idleness, sizes
    from controlplane.operations.upkeep import ROUNDS
    from controlplane.services.placement import choose_host
    from controlplane.services.waking import start_for_client

    host = Host.objects.select_related("region").get(id="h1")
    endpoint = Endpoint.objects.filter(project__host=host).order_by("id")[500]
    project = endpoint.project
    values = {
        "endpoint": endpoint.id,
        "role": "neondb_owner",
        "names": ["neondb_owner"],
        "host": host.id,
        "region": host.region_id,
        "at": endpoint.created_at,
    }
    for name, sql in (("ROUTE", ROUTE), ("STATE", STATE), ("ROLES", ROLES), ("USED", USED)):
        yield f"proxy: {name}", partial(_execute, sql, values)
    yield "proxy: PEERS", partial(_execute, PEERS, values)
    yield "wake: start_for_client", partial(start_for_client, endpoint.id)
    yield "create: choose_host", partial(choose_host, host.region)
    account = Account.objects.get(id=project.account_id)
    header = {"authorization": f"Bearer perch_{account.name}"}
    path = f"/api/v2/projects/{project.id}"
    for name, url in (
        ("projects", "/api/v2/projects"),
        ("endpoints", f"{path}/endpoints"),
        ("branches", f"{path}/branches"),
        ("operations", f"{path}/operations"),
        ("events", "/api/v2/events"),
        ("events of a project", f"{path}/events"),
        ("states", "/api/v2/projects/states"),
    ):
        yield f"list: {name}", partial(_asked, Client(), url, header)
    # The endpoints that run on the host by the rows, as its worker would see their processes.
    running: dict[str, str | None] = dict(
        Endpoint.objects.filter(
            project__host=host, deleted_at=None, current_state="active"
        ).values_list("branch_id", "id")
    )
    compute.may_run = lambda: {one for one in running.values() if one}
    compute.look_at_all = lambda **_: running
    for name, rows in (
        (
            "suspend_idle_endpoints",
            idleness._active_endpoints(host).filter(id__in=compute.may_run()),
        ),
        ("measure_sizes", sizes._running(host)),
        ("keep_history, running", history._running(host)),
        ("keep_history, stopped lately", history._stopped(host, since=history.LATELY)),
        ("keep_history, all stopped", history._stopped(host, since=None)),
    ):
        yield f"round: {name}", partial(_read, rows)
    for one in ROUNDS:
        if one.do.__name__ not in NOT_MEASURED:
            yield f"round: {one.do.__name__}", partial(one.do, host)


def _execute(sql: str, values: Mapping[str, Any]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def _read(rows: Any) -> None:
    list(rows.all())


def _asked(client: Any, url: str, header: Mapping[str, str]) -> None:
    answer = client.get(url, headers=header)
    assert answer.status_code == 200, answer.content


@contextmanager
def rolled_back() -> Iterator[None]:
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@dataclass
class Statements:
    """The statements that run in a block, with the seconds that they take altogether."""

    texts: list[tuple[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @contextmanager
    def recorded(self) -> Iterator[None]:
        from django.db import connection as of_django

        # Its type has Perch's `read` only at run time.
        connection: Any = of_django
        read = connection.read

        def timed(run: Callable[..., Any], sql: str, values: Any, *rest: Any) -> Any:
            self.texts.append((sql, values))
            began = time.perf_counter()
            try:
                return run(sql, values, *rest)
            finally:
                self.seconds += time.perf_counter() - began

        # `Reading` passes Django's cursors by.
        connection.read = lambda sql, values: timed(read, sql, values)
        try:
            with connection.execute_wrapper(timed):
                yield
        finally:
            del connection.read


def measure_here() -> dict[str, Any]:
    """Measure all parts on the database of the environment."""
    import django

    django.setup()
    # The rounds miss the data of the branches.
    logging.disable()
    found: dict[str, Any] = {}
    for name, work in parts():
        milliseconds: list[float] = []
        for _ in range(REPEATED):
            statements = Statements()
            with rolled_back(), statements.recorded():
                work()
            milliseconds.append(1000 * statements.seconds)
        # The first fills caches.
        found[name] = {"milliseconds": milliseconds[1:], "plans": _plans(statements.texts)}
    return found


def _plans(statements: Sequence[tuple[str, Any]]) -> dict[str, list[str]]:
    """The scans in the plan of each statement."""
    from django.db import connection

    plans: dict[str, list[str]] = {}
    with rolled_back(), connection.cursor() as cursor:
        for sql, values in statements:
            if sql.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
                cursor.execute(f"EXPLAIN {sql}", values)
                text = "\n".join(row[0] for row in cursor.fetchall())
                plans[" ".join(sql.split())] = [" ".join(one) for one in SCAN.findall(text)]
    return plans


if __name__ == "__main__":
    print(json.dumps(measure_here()))
