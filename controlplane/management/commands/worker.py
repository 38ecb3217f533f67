"""`manage.py worker`: runs this host's jobs, and the rounds for its computes.

Each lane has slots of its own. So jobs that hang in one lane, or that come in large numbers, delay
no other lane. So have the webhooks. They belong to no host: all hosts' workers share their queue.
"""

import asyncio
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import OperationalError, close_old_connections
from psycopg import OperationalError as NoAnswer

from controlplane.compute.data.state_directory import prepare_state_directory, sole_holder
from controlplane.compute.host import patience
from controlplane.compute.host.binaries import PostgresUnusable, check_programs
from controlplane.database.base import release_connection
from controlplane.database.connection_counts import connection_shortage
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, perch_version, refuse_other_version
from controlplane.events import outbox
from controlplane.features import CannotServe, Round, features
from controlplane.logs import context
from controlplane.metrics import figures, sampling
from controlplane.models import Host, Job, JobTask, Lane
from controlplane.operations import under_way
from controlplane.operations.actions import readings
from controlplane.operations.engine import execution
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.locks import noting_failures
from controlplane.operations.own_host import HostTaken, own_host, was_declared_lost
from controlplane.operations.queue.runner import MAX_CONCURRENT_MOVES, Queue, Runner
from controlplane.operations.rounds import at_rest, reconcile, vitals
from controlplane.operations.rounds.at_rest import active
from controlplane.operations.rounds.reconcile import stop_all_computes
from controlplane.operations.rounds.upkeep import (
    all_rounds,
    hold_outbound,
    publish,
    publish_region_address,
    publish_settings,
)
from controlplane.process_accounts import manage_files_as_root

log = logging.getLogger(__name__)


def do(job: Job) -> None:
    """Do what the job is for. Raises if it is to be done again."""
    for feature in features():
        if job.task in feature.jobs:
            feature.jobs[JobTask(job.task)](job.subject)
            return
    with active():
        if job.task == JobTask.RUN_OPERATION:
            execution.run(uuid.UUID(job.subject), runs=job.earlier_runs)
        elif job.task == JobTask.RECONCILE_BRANCH:
            reconcile.reconcile_branch(job.subject)
        else:
            assert job.task == JobTask.READ_SCHEMA, job
            readings.read_schema(uuid.UUID(job.subject))


class Outage:
    """Says once that the database does not answer, however many jobs and rounds meet it, and once
    that it answers again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    def begins(self, error: Exception) -> None:
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                log.warning("database does not answer", extra={"error": str(error).strip()})

    def ends(self) -> None:
        if self._since is not None:
            seconds = round(time.monotonic() - self._since, 1)
            self._since = None
            log.info("database answers again", extra={"seconds": seconds})


outage = Outage()


class Command(BaseCommand):
    help = "Runs operations and looks after the computes of this host."

    def handle(self, *args: Any, **options: Any) -> None:
        manage_files_as_root()
        prepare_state_directory()
        try:
            check_programs()
            refuse_other_version(beside=True)
            refuse_other_key()
            host = own_host()
            patience.before_waits = release_connection
            begun = [one for feature in features() for one in feature.begin(host)]
        except (
            *(OtherVersion, OtherSecretKey, HostTaken, CannotServe),
            *(PostgresUnusable, OperationalError, NoAnswer),
        ) as error:
            log.critical("cannot serve", extra={"error": str(error).strip()})
            if isinstance(error, HostTaken) and was_declared_lost():
                # Its projects run on other hosts.
                stop_all_computes()
            raise SystemExit(1) from error
        if words := connection_shortage(hosts=Host.objects.count()):
            log.warning("too few connections", extra={"detail": words})
        publish_settings(host)
        publish_region_address(host)
        # Before any compute starts, and before the host's status is published.
        hold_outbound(host)
        publish(host)
        queues = queues_of(host)
        served = {"host": host.id, "region": host.region_id, "version": perch_version()}
        log.info("serving", extra={**served, "queues": [queue.name for queue in queues]})
        sampling.begin_in_thread("worker")
        runner = Runner(queues, do, outage=outage.begins)
        with sole_holder("worker") as alone:
            if alone:
                # No other process runs jobs of this host any more, whatever it had begun.
                of_lanes = [queue.name for queue in queues if queue.name != outbox.QUEUE]
                runner.beat(of_lanes, dead_after=0)
            asyncio.run(work(runner, host, [*all_rounds(), *begun]))
        # Python would wait for threads whose store of the history does not answer.
        os._exit(0)


def queues_of(host: Host) -> list[Queue]:
    """The queues of the host's lanes, from which only its one worker takes jobs, and that of the
    webhooks."""
    slots = settings.LANE_SLOTS
    lanes = [
        Queue(
            host.queue(lane),
            slots[lane],
            moves=MAX_CONCURRENT_MOVES if lane == Lane.UPKEEP else slots[lane],
        )
        for lane in Lane
    ]
    return [*lanes, Queue(outbox.QUEUE, settings.WEBHOOK_SLOTS, moves=0)]


async def work(runner: Runner, host: Host, rounds: Sequence[Round]) -> None:
    """Run jobs and rounds until a signal ends this process. Then jobs that wait stay in the queue,
    where the next worker finds them, and those that have begun are waited for."""
    loop = asyncio.get_running_loop()
    # One thread for all that can be busy at once, so that no round waits for a thread.
    loop.set_default_executor(ThreadPoolExecutor(len(rounds) + 1))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, runner)
    beside = [asyncio.create_task(repeat(one, host)) for one in rounds]
    try:
        await asyncio.to_thread(runner.run)
    except Exception:
        # This process would do no more rounds, and would not end before its jobs do. The next
        # worker puts them back.
        log.critical("queue failed", exc_info=True)
        os._exit(1)
    finally:
        for task in beside:
            task.cancel()


def stop(runner: Runner) -> None:
    # A job that still waits for its branches is given up; one that waits for a webhook's receiver
    # is cut off.
    under_way.ending.set()
    for feature in features():
        feature.end()
    runner.stop()


async def repeat(one: Round, host: Host) -> None:
    """Do the round at every interval; an error is logged, and the round is tried again."""
    name = one.do.__name__
    vitals.rounds.begin(name, one.interval)
    with context(round=name):
        while True:
            try:
                with figures.ROUNDS.labels(name).time(), noting_failures() as failures:
                    await asyncio.to_thread(_with_connections, one, host)
            except HostTaken as taken:
                # Whatever this process still does could contradict the one that serves the host
                # now. Its jobs are retried as those of a worker that was killed.
                log.critical("host lost", extra={"error": str(taken)})
                os._exit(1)
            except HostAway as away:
                # This worker has not written its sign of life for long, because it or the database
                # stood still. It will soon, and a later round finds what was to be scheduled.
                log.info("round postponed", extra={"reason": str(away)})
                vitals.rounds.end(name)
            except Exception as error:
                if isinstance(error, OperationalError):
                    outage.begins(error)
                else:
                    log.exception("round failed")
                figures.FAILED_ROUNDS.labels(name).inc()
                vitals.rounds.end(name, error=error)
            else:
                if failures:
                    figures.FAILED_ROUNDS.labels(name).inc()
                vitals.rounds.end(name, failures=failures)
                if one.do is publish:
                    outage.ends()
            await pause(one)


async def pause(one: Round) -> None:
    """Wait until the round is to be done again."""
    await asyncio.sleep(one.interval)
    if one.at_rest is not None:
        name = one.do.__name__
        vitals.rounds.rest(name, one.at_rest)
        if await at_rest.wait_at_rest(one.at_rest - one.interval):
            await asyncio.sleep(one.interval)
        vitals.rounds.rest(name, one.interval)


def _with_connections(one: Round, host: Host) -> None:
    close_old_connections()
    try:
        one.do(host)
    finally:
        close_old_connections()
