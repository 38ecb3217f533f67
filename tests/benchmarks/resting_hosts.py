"""The part `rest` of `tests.benchmarks.hosts`: what three hosts with 10,000 idle projects each cost
while nobody does anything.

Workers, proxies and the API are real processes. Of the projects' data there are only the branches'
empty directories and lock files, which rounds list: at rest no process looks into them, except a
sample of 200 branches a minute.
"""

import time
from typing import Any

import psutil
import psycopg

from tests.benchmarks.region_rows import fill_projects
from tests.support.bare_postgres import Programs, bare_postgres
from tests.support.stack import ROOT, new_state_dir
from tests.support.versions import PRESENT_VERSION, VersionedHost, region

HOSTS, PROJECTS = ("a", "b", "c"), 10_000
# Seconds: until what a start does once is over, and of the measurement.
SETTLED, MEASURED = 30, 60
# Of all hosts together, and the part of a processor core that one worker uses.
MOST_TRANSACTIONS, MOST_OF_A_CORE = 10.0, 0.01
TRANSACTIONS = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"


def main() -> None:
    with new_state_dir() as state_dir, bare_postgres(Programs(state_dir)) as postgres:
        postgres.start(
            shared_preload_libraries="pg_stat_statements", log_min_duration_statement="1000"
        )
        url = f"host={postgres.directory} user=postgres dbname=postgres"
        with (
            region(state_dir, url, ROOT, PRESENT_VERSION, HOSTS) as hosts,
            psycopg.connect(url, autocommit=True) as session,
        ):
            for host in hosts:
                fill_projects(session, host.name, PROJECTS)
                _make_directories(session, host)
            session.execute("VACUUM ANALYZE")
            _measure(session, hosts)


def _make_directories(session: "psycopg.Connection[tuple[Any, ...]]", host: VersionedHost) -> None:
    of_host = (
        "SELECT b.id FROM controlplane_branch b JOIN controlplane_project p ON p.id = b.project_id"
        " WHERE p.host_id = %s"
    )
    for (branch_id,) in session.execute(of_host, [host.name]):
        (host.state_dir / "branches" / branch_id / "data").mkdir(parents=True)
        (host.state_dir / "locks" / branch_id).touch()


def _measure(session: "psycopg.Connection[tuple[Any, ...]]", hosts: list[VersionedHost]) -> None:
    time.sleep(SETTLED)
    session.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    session.execute("SELECT pg_stat_statements_reset()")
    before, used = _transactions(session), _processor_times(hosts)
    time.sleep(MEASURED)
    rate = (_transactions(session) - before) / MEASURED
    print(f"{len(hosts)} hosts with {PROJECTS:,} idle projects each, {MEASURED} s at rest")
    print(f"  metadata: {rate:.1f} transactions/s (at most {MOST_TRANSACTIONS})")
    for name, seconds in _processor_times(hosts).items():
        part = (seconds - used[name]) / MEASURED
        target = f" (at most {MOST_OF_A_CORE:.1%})" if name.startswith("worker") else ""
        print(f"  {name:<10} {part:6.2%} of a core{target}")
    print("  the statements that run most often, per second, and their mean milliseconds:")
    rows = session.execute(
        "SELECT calls, mean_exec_time, query FROM pg_stat_statements"
        " WHERE query !~ '^(BEGIN|COMMIT|SET|SELECT pg_stat)' ORDER BY calls DESC LIMIT 25"
    )
    for calls, mean, query in rows:
        print(f"  {calls / MEASURED:6.2f} {mean:8.2f}  {' '.join(str(query).split())[:110]}")


def _transactions(session: "psycopg.Connection[tuple[Any, ...]]") -> float:
    # Sessions report what they did after a second at the latest, if they are idle.
    session.execute("SELECT pg_stat_clear_snapshot()")
    row = session.execute(TRANSACTIONS).fetchone()
    assert row is not None
    return float(row[0])


def _processor_times(hosts: list[VersionedHost]) -> dict[str, float]:
    """The seconds of processor time of each host's processes, with those below them."""
    found = {}
    for host in hosts:
        for name, process in host.processes.items():
            main = psutil.Process(process.pid)
            times = [one.cpu_times() for one in (main, *main.children(recursive=True))]
            found[f"{name} {host.name}"] = sum(one.user + one.system for one in times)
    return found
