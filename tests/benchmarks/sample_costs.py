"""The parts of the benchmark `samples`. Django must be set up before the import."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import psutil
import psycopg
from django.db import connection

from controlplane.compute import branch_data, compute, observation
from controlplane.compute.configuration import PLATFORM_ROLE, ComputeSpec
from controlplane.compute.samples import Sample, look_and_sample
from controlplane.compute.session import socket_dir
from controlplane.compute.state_directory import prepare_state_directory
from controlplane.models import Account, Branch, Endpoint, Host, Project, RecentMetrics, Region
from controlplane.operations.sampling import SPENT, SPENT_SAMPLES, note, pack_metrics
from tests.support.own_compute import postmaster_of

BRANCH, ENDPOINT = "br-benchmark", "ep-benchmark"
# Looks of each kind in a round; the rounds' median counts. A compute's time is known to 10 ms.
LOOKS, ROUNDS = 300, 9
SAMPLED, DAY = 50, 1440
DATABASES = 3


def of_a_look() -> float:
    """The processor seconds that a look takes longer with a sample, in all processes."""
    with running() as client:
        differences = []
        for _ in range(ROUNDS):
            plain = seconds(lambda: observation.look(ENDPOINT))
            sampled = seconds(lambda: look_and_sample(ENDPOINT, BRANCH, None))
            differences.append(sampled - plain)
            client.execute("SELECT count(*) FROM pg_class")
        print(f"a look without a sample: {plain * 1e6:.0f} µs", flush=True)
        return statistics.median(differences)


def seconds(look: Callable[[], object]) -> float:
    before = time.process_time() + used_by(postmaster_of(BRANCH).pid)
    for _ in range(LOOKS):
        look()
    return (time.process_time() + used_by(postmaster_of(BRANCH).pid) - before) / LOOKS


def of_a_day(database: int) -> tuple[float, float, float, float]:
    """Write the samples of two days. Returns the processor seconds of storing a sample and of
    packing an endpoint's hour, here and in the `database`, and for each endpoint the megabytes by
    which the rows grow in a day, and those of the last hours' rows."""
    region = Region.objects.create(id="local", name="local", host="localhost", default=True)
    host = Host.objects.create(id="local", region=region, address="localhost")
    account = Account.objects.create(name="benchmark")
    project = Project.objects.create(
        account=account, region=region, host=host, name="x", pg_version=18
    )
    branches = Branch.objects.bulk_create(
        Branch(project=project, name=f"{i}", current_state="ready", logical_size=0)
        for i in range(SAMPLED)
    )
    made = Endpoint.objects.bulk_create(
        Endpoint(project=project, branch=branch, current_state="active") for branch in branches
    )
    busy = [Busy(endpoint) for endpoint in made]
    now = datetime.now(UTC).replace(hour=0, minute=0, second=5, microsecond=0) - timedelta(days=3)
    noting = packing = first_day = 0.0
    for minute in range(2 * DAY):
        if minute == DAY:
            first_day = size_of("controlplane_pastmetrics")
        taken = [(one.endpoint, one.sample()) for one in busy]
        began = time.process_time() + used_by(database)
        note(taken, now + timedelta(minutes=minute))
        noted = time.process_time() + used_by(database)
        noting += noted - began
        if minute % 60 == 59:
            pack_metrics(host)
            packing += time.process_time() + used_by(database) - noted
            forget_hours(now + timedelta(minutes=minute))
    assert RecentMetrics.objects.count() <= 13 * SAMPLED
    # The first day's size has the room for changing rows too, which does not grow.
    day = (size_of("controlplane_pastmetrics") - first_day) / SAMPLED
    hours = size_of("controlplane_recentmetrics") / SAMPLED
    return noting / SAMPLED / (2 * DAY), packing / SAMPLED / 48, day / 1e6, hours / 1e6


def forget_hours(now: datetime) -> None:
    with connection.cursor() as cursor:
        when = {"old": now - timedelta(days=14), "spent": now - timedelta(hours=3)}
        cursor.execute(SPENT, when)
        cursor.execute(SPENT_SAMPLES, when)
        # As autovacuum does it.
        cursor.execute("VACUUM controlplane_recentmetrics")
        cursor.execute("VACUUM controlplane_pastmetrics")


class Busy:
    """An endpoint whose load changes by chance from minute to minute."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._chance = random.Random(endpoint.id)
        self._counts = dict.fromkeys(
            ("cpu_milliseconds", "cache_hits", "cache_misses", "rows_read", "rows_written"), 0
        ) | {"deadlocks": 0, "log_bytes": 30_000_000}
        self._size = 50_000_000

    def sample(self) -> Sample:
        chance, load = self._chance, self._chance.lognormvariate(0, 0.5)
        for name, usual in (
            ("cpu_milliseconds", 9_000),
            ("cache_hits", 900_000),
            ("cache_misses", 5_000),
            ("rows_read", 600_000),
            ("rows_written", 20_000),
            ("log_bytes", 4_000_000),
        ):
            self._counts[name] += int(usual * load * chance.uniform(0.8, 1.2))
        self._size += chance.randrange(0, 5) * 8192
        self.endpoint.branch.logical_size = self._size
        gauges = {
            "connections_active": chance.randrange(1, 9),
            "connections_idle": chance.randrange(10, 30),
            "connections_idle_in_transaction": chance.randrange(0, 3),
            "active_queries": chance.randrange(1, 9),
            "memory_bytes": chance.randrange(150_000_000, 180_000_000),
        }
        return Sample("1", "1:1", {**gauges, **self._counts})


def used_by(postmaster: int) -> float:
    """The processor seconds of a Postgres, with those of its ended processes."""
    process = psutil.Process(postmaster)
    times = process.cpu_times()
    used = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            own = child.cpu_times()
            used += own.user + own.system
    return float(used)


def size_of(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size(%s)", [table])
        return int(cursor.fetchone()[0])


@contextmanager
def running() -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """A running compute with some databases and a client."""
    prepare_state_directory()
    branch_data.create_from_template(BRANCH)
    compute.start(ComputeSpec(ENDPOINT, BRANCH, 0.25, 0.25, {}))
    try:
        with psycopg.connect(
            host=str(socket_dir(ENDPOINT)), user=PLATFORM_ROLE, dbname="postgres", autocommit=True
        ) as client:
            for number in range(DATABASES):
                client.execute(f"CREATE DATABASE benchmark_{number}".encode())
            yield client
    finally:
        compute.stop(BRANCH)
