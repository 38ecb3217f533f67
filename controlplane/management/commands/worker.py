"""`manage.py worker`: runs this host's jobs, and the rounds for its computes.

Each lane has a Procrastinate worker of its own, with its own slots. So jobs that hang in one lane,
or that come in large numbers, delay no other lane. Webhooks have such a worker too. They belong to
no host: all hosts' workers share their queue.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import OperationalError, close_old_connections
from procrastinate import App
from procrastinate.contrib.django import app as django_app
from procrastinate.exceptions import ConnectorException
from psycopg import OperationalError as NoAnswer
from psycopg.errors import RaiseException

from controlplane import clock
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
from controlplane.models import Host, Lane
from controlplane.operations import under_way
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.locks import noting_failures
from controlplane.operations.own_host import HostTaken, own_host, was_declared_lost
from controlplane.operations.queue.beat import beat
from controlplane.operations.queue.connector import queue_connector
from controlplane.operations.queue.lane_jobs import MAX_CONCURRENT_MOVES, LaneJobs
from controlplane.operations.rounds import at_rest, vitals
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

HEARTBEAT_INTERVAL = 2.0  # seconds
# Seconds between two looks of a queue that has heard of nothing.
POLL_INTERVAL = 60.0
# Seconds without a heartbeat after which a worker counts as dead and its jobs are retried.
DEAD_AFTER = 8.0
# Seconds before a queue's worker is started again after the database failed it.
QUEUE_RETRY_DELAY = 0.5


class Outage:
    """Says once that the database does not answer, however many jobs and rounds meet it, and once
    that it answers again. Used by the event loop's thread only."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begins(self, error: BaseException | None) -> None:
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
        served = {"host": host.id, "region": host.region_id, "version": perch_version()}
        log.info("serving", extra={**served, "queues": [*queues_of(host), outbox.QUEUE]})
        sampling.begin_in_thread("worker")
        # The tasks' own app keeps Django's connector: their jobs must be part of their
        # transactions.
        app = django_app.with_connector(queue_connector())
        with sole_holder("worker") as alone:
            asyncio.run(work(app, host, [*all_rounds(), *begun], alone=alone))


async def work(app: App, host: Host, rounds: Sequence[Round], *, alone: bool) -> None:
    """Run jobs and rounds until a signal ends this process. If `alone`, no other worker runs on
    this host's state, so the jobs that an earlier worker had begun are retried at once."""
    # One thread for all that can be busy at once, so that no job or round waits for a thread: a job
    # takes its thread only once it has a slot of its lane.
    slots = sum(settings.LANE_SLOTS.values()) + settings.WEBHOOK_SLOTS
    threads = ThreadPoolExecutor(slots + len(rounds))
    asyncio.get_running_loop().set_default_executor(threads)
    async with app.open_async():
        if alone:
            await revive_jobs(app, queues_of(host), silent_for=0)
        beside = [asyncio.create_task(repeat(one, host)) for one in rounds]
        beside.append(asyncio.create_task(revive_stalled_jobs(app, host)))
        try:
            await run_lanes(app, host)
        finally:
            for task in beside:
                task.cancel()


async def run_lanes(app: App, host: Host) -> None:
    """Run the jobs of all lanes until a signal ends this process.

    Jobs that no lane has taken by then stay in the queue, where the next worker finds them. Jobs
    that have begun are waited for.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    lanes = [
        asyncio.create_task(run_queue(app, host.queue(lane), lane, settings.LANE_SLOTS[lane]))
        for lane in Lane
    ]
    lanes.append(
        asyncio.create_task(run_queue(app, outbox.QUEUE, "webhooks", settings.WEBHOOK_SLOTS))
    )
    until = asyncio.create_task(stopped.wait())
    await asyncio.wait([*lanes, until], return_when=asyncio.FIRST_COMPLETED)
    # A cancelled Procrastinate worker takes no more jobs, and ends after its last one. A job that
    # still waits for its branches is given up; one that waits for a webhook's receiver is cut off.
    under_way.ending.set()
    for feature in features():
        feature.end()
    for task in (*lanes, until):
        task.cancel()
    for ended in await asyncio.gather(*lanes, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def run_queue(app: App, queue: str, name: str, slots: int) -> None:
    """Run the jobs of the queue until cancelled.

    If the database fails it, Procrastinate's worker waits for the jobs that it had begun, and ends.
    Another one is then started in its place. Other queues are not affected.
    """
    while True:
        try:
            await run_jobs(app, queue, name, slots)
        except ConnectorException as error:
            outage.begins(error.__cause__)
        await asyncio.sleep(QUEUE_RETRY_DELAY)


async def run_jobs(app: App, queue: str, name: str, slots: int) -> None:
    of_queue = app.with_connector(app.connector)
    of_queue.job_manager = LaneJobs(
        app.connector, slots=slots, moves=MAX_CONCURRENT_MOVES if name == Lane.UPKEEP else slots
    )
    await of_queue.run_worker_async(
        queues=[queue],
        name=name,
        concurrency=slots,
        delete_jobs="always",
        # New jobs are notified, and so are those that become due (`queue.beat`).
        fetch_job_polling_interval=POLL_INTERVAL,
        update_heartbeat_interval=POLL_INTERVAL,
        stalled_worker_timeout=DEAD_AFTER,
        shutdown_graceful_timeout=60,
        install_signal_handlers=False,
    )


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


async def revive_stalled_jobs(app: App, host: Host) -> None:
    """Write the heartbeats, and put back the jobs of workers whose heartbeat has stopped."""
    queues = [*queues_of(host), outbox.QUEUE]
    while True:
        try:
            if await beat(app.connector, queues, dead_after=DEAD_AFTER):
                await revive_jobs(app, queues, silent_for=DEAD_AFTER)
        except ConnectorException as error:
            outage.begins(error.__cause__)
        await asyncio.sleep(HEARTBEAT_INTERVAL)


def queues_of(host: Host) -> list[str]:
    """The queues from which only the host's one worker takes jobs."""
    return [host.queue(lane) for lane in Lane]


async def revive_jobs(app: App, queues: Sequence[str], *, silent_for: float) -> None:
    """Put back the running jobs of workers without a heartbeat for `silent_for` seconds."""
    for queue in queues:
        stalled = await app.job_manager.get_stalled_jobs(
            queue=queue, seconds_since_heartbeat=silent_for
        )
        for job in stalled:
            fields = {"job": job.id, **job.task_kwargs}
            try:
                await app.job_manager.retry_job(job, retry_at=clock.now())
            except ConnectorException as error:
                if not isinstance(error.__cause__, RaiseException):
                    raise
                # Its worker was only slow: it has finished the job meanwhile.
                log.info("job ended meanwhile", extra=fields)
            else:
                log.warning("worker of a job exited, job retried", extra=fields)


def _with_connections(one: Round, host: Host) -> None:
    close_old_connections()
    try:
        one.do(host)
    finally:
        close_old_connections()
