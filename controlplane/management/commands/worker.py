"""`manage.py worker`: takes jobs of this host's region and looks after its computes.

Each lane has a Procrastinate worker of its own, with its own slots: what hangs in one lane, or
comes in masses, delays nothing in another. So have the webhooks, which are of no region: their
queue is shared with the workers of the others.
"""

import asyncio
import logging
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections
from procrastinate import App
from procrastinate.contrib.django import app as django_app
from procrastinate.exceptions import ConnectorException
from psycopg.errors import RaiseException

from controlplane import clock
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.state_directory import prepare_state_directory, sole_holder
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.events import outbox
from controlplane.logs import context
from controlplane.models import Lane, Region
from controlplane.operations import under_way, vitals
from controlplane.operations.lane_jobs import LaneJobs
from controlplane.operations.own_region import RegionTaken, own_region
from controlplane.operations.queue_connector import queue_connector
from controlplane.operations.scheduling import RegionAway
from controlplane.operations.upkeep import (
    ROUNDS,
    Round,
    hold_outbound,
    publish,
    publish_settings,
)
from controlplane.webhooks import lines

log = logging.getLogger(__name__)

HEARTBEAT = 2.0  # seconds
# A worker without a heartbeat for this long is dead; its jobs are run again.
DEAD_AFTER = 8.0
# Seconds before a queue that was broken off is gone on with.
QUEUE_PAUSE = 0.5


class Command(BaseCommand):
    help = "Runs operations and looks after the computes of this host's region."

    def handle(self, *args: Any, **options: Any) -> None:
        prepare_state_directory()
        postgres_bin()
        try:
            refuse_other_version()
            region = own_region()
        except (OtherVersion, RegionTaken) as error:
            log.critical("cannot serve", extra={"error": str(error)})
            raise SystemExit(1) from error
        publish_settings(region)
        # Before any compute starts, and before the region says how it is.
        hold_outbound(region)
        publish(region)
        # The tasks' own app keeps Django's connector: what they enqueue must be part of
        # their transaction.
        app = django_app.with_connector(queue_connector())
        with sole_holder("worker") as alone:
            asyncio.run(work(app, region, alone=alone))


async def work(app: App, region: Region, *, alone: bool) -> None:
    """Run jobs until a signal ends us; the rounds go on beside. Where it is `alone`, no other
    worker runs on this host's state: what one had begun is taken up at once."""
    # As many as can be busy at once, so that none ever waits for another's: a job takes its
    # thread only once it has a slot of its lane.
    slots = sum(settings.LANE_SLOTS.values()) + settings.WEBHOOK_SLOTS
    threads = ThreadPoolExecutor(slots + len(ROUNDS))
    asyncio.get_running_loop().set_default_executor(threads)
    async with app.open_async():
        if alone:
            await revive_jobs(app, queues_of(region), silent_for=0)
        beside = [asyncio.create_task(repeat(one, region)) for one in ROUNDS]
        beside.append(asyncio.create_task(revive_stalled_jobs(app, region)))
        try:
            await run_lanes(app, region)
        finally:
            for task in beside:
                task.cancel()


async def run_lanes(app: App, region: Region) -> None:
    """Run the jobs of all lanes until a signal ends us.

    What no lane has taken by then is a row of the queue still: the next worker finds it there.
    What was taken and has begun is waited for.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    lanes = [
        asyncio.create_task(run_queue(app, region.queue(lane), lane, settings.LANE_SLOTS[lane]))
        for lane in Lane
    ]
    lanes.append(
        asyncio.create_task(run_queue(app, outbox.QUEUE, "webhooks", settings.WEBHOOK_SLOTS))
    )
    until = asyncio.create_task(stopped.wait())
    await asyncio.wait([*lanes, until], return_when=asyncio.FIRST_COMPLETED)
    # A worker that is cancelled takes no more jobs, and ends once its last one has. What waits
    # for its branches only is given up before it begins, what waits for a receiver at once.
    under_way.ending.set()
    lines.break_off()
    for task in (*lanes, until):
        task.cancel()
    for ended in await asyncio.gather(*lanes, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def run_queue(app: App, queue: str, name: str, slots: int) -> None:
    """Run the jobs of the queue until cancelled.

    Procrastinate's worker ends where the database fails it; what it had begun is waited for
    then. Another one begins in its place, and no other queue knows of it.
    """
    while True:
        try:
            await run_jobs(app, queue, name, slots)
        except ConnectorException as error:
            log.warning("queue broken off", extra={"queue": queue, "error": str(error.__cause__)})
        await asyncio.sleep(QUEUE_PAUSE)


async def run_jobs(app: App, queue: str, name: str, slots: int) -> None:
    of_queue = app.with_connector(app.connector)
    of_queue.job_manager = LaneJobs(app.connector, slots=slots)
    await of_queue.run_worker_async(
        queues=[queue],
        name=name,
        concurrency=slots,
        delete_jobs="always",
        fetch_job_polling_interval=0.5,
        update_heartbeat_interval=HEARTBEAT,
        stalled_worker_timeout=DEAD_AFTER,
        shutdown_graceful_timeout=60,
        install_signal_handlers=False,
    )


async def repeat(one: Round, region: Region) -> None:
    """Do the round every interval; what goes wrong is logged and tried again."""
    name = one.do.__name__
    vitals.rounds.begin(name, one.interval)
    with context(round=name):
        while True:
            try:
                await asyncio.to_thread(_with_connections, one, region)
            except RegionAway as away:
                # This worker has not said for long that it is there, as it or the database stood
                # still: it does so soon, and what was to be scheduled is found again.
                log.info("round put off", extra={"reason": str(away)})
                vitals.rounds.end(name)
            except Exception as error:
                log.exception("round failed")
                vitals.rounds.end(name, error=error)
            else:
                vitals.rounds.end(name)
            await asyncio.sleep(one.interval)


async def revive_stalled_jobs(app: App, region: Region) -> None:
    """Put back the jobs whose worker's heartbeat has stopped."""
    while True:
        try:
            await revive_jobs(app, [*queues_of(region), outbox.QUEUE], silent_for=DEAD_AFTER)
        except ConnectorException:
            log.exception("could not look for stalled jobs")
        await asyncio.sleep(HEARTBEAT)


def queues_of(region: Region) -> list[str]:
    """Those from which only the region's one worker takes jobs."""
    return [region.queue(lane) for lane in Lane]


async def revive_jobs(app: App, queues: Sequence[str], *, silent_for: float) -> None:
    """Put back the jobs that are being done by a worker that has been `silent_for` seconds."""
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
                # Its worker was only slow: it has ended the job since we looked.
                log.info("job ended meanwhile", extra=fields)
            else:
                log.warning("worker of a job dead, job retried", extra=fields)


def _with_connections(one: Round, region: Region) -> None:
    close_old_connections()
    try:
        one.do(region)
    finally:
        close_old_connections()
