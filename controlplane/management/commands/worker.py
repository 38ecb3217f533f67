"""`manage.py worker`: takes jobs of this host's region and looks after its computes."""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from procrastinate import App
from procrastinate.contrib.django import app as django_app
from procrastinate.contrib.django.django_connector import DjangoConnector
from procrastinate.exceptions import ConnectorException

from controlplane.compute.binaries import postgres_bin
from controlplane.compute.state_directory import prepare_state_directory
from controlplane.database import OtherVersion, refuse_other_version
from controlplane.logs import context
from controlplane.models import Region
from controlplane.operations.upkeep import ROUNDS, Round, own_region, publish

log = logging.getLogger(__name__)

HEARTBEAT = 2.0  # seconds
# A worker without a heartbeat for this long is dead; its jobs are run again.
DEAD_AFTER = 8.0


class Command(BaseCommand):
    help = "Runs operations and looks after the computes of this host's region."

    def handle(self, *args: Any, **options: Any) -> None:
        prepare_state_directory()
        postgres_bin()
        try:
            refuse_other_version()
        except OtherVersion as error:
            raise CommandError(str(error)) from error
        region = own_region()
        publish(region)
        connector = django_app.connector
        assert isinstance(connector, DjangoConnector)
        # The tasks' own app keeps Django's connector: what they enqueue must be part of
        # their transaction.
        asyncio.run(work(django_app.with_connector(connector.get_worker_connector()), region))


async def work(app: App, region: Region) -> None:
    """Run jobs until a signal ends us; the rounds go on beside."""
    threads = ThreadPoolExecutor(settings.WORKER_CONCURRENCY + len(ROUNDS))
    asyncio.get_running_loop().set_default_executor(threads)
    async with app.open_async(), only_one() as alone:
        if alone:
            await revive_jobs(app, region, silent_for=0)
        beside = [asyncio.create_task(repeat(one, region)) for one in ROUNDS]
        beside.append(asyncio.create_task(revive_stalled_jobs(app, region)))
        try:
            await app.run_worker_async(
                queues=[region.queue],
                concurrency=settings.WORKER_CONCURRENCY,
                delete_jobs="always",
                fetch_job_polling_interval=0.5,
                update_heartbeat_interval=HEARTBEAT,
                stalled_worker_timeout=DEAD_AFTER,
                shutdown_graceful_timeout=60,
            )
        finally:
            for task in beside:
                task.cancel()


async def repeat(one: Round, region: Region) -> None:
    """Do the round every interval; what goes wrong is logged and tried again."""
    with context(round=one.do.__name__):
        while True:
            try:
                await asyncio.to_thread(_with_connections, one, region)
            except Exception:
                log.exception("round failed")
            await asyncio.sleep(one.interval)


@asynccontextmanager
async def only_one() -> AsyncIterator[bool]:
    """Whether no other worker runs on this host's state; none comes to think so meanwhile.

    The kernel lets go of the lock when its holder dies, so it knows sooner than any heartbeat.
    """
    with (settings.STATE_DIR / "worker.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


async def revive_stalled_jobs(app: App, region: Region) -> None:
    """Put back the jobs whose worker's heartbeat has stopped."""
    while True:
        try:
            await revive_jobs(app, region, silent_for=DEAD_AFTER)
        except ConnectorException:
            log.exception("could not look for stalled jobs")
        await asyncio.sleep(HEARTBEAT)


async def revive_jobs(app: App, region: Region, *, silent_for: float) -> None:
    """Put back the jobs that are being done by a worker that has been `silent_for` seconds."""
    stalled = await app.job_manager.get_stalled_jobs(
        queue=region.queue, seconds_since_heartbeat=silent_for
    )
    for job in stalled:
        fields = {"job": job.id, **job.task_kwargs}
        log.warning("worker of a job dead, job retried", extra=fields)
        await app.job_manager.retry_job(job)


def _with_connections(one: Round, region: Region) -> None:
    close_old_connections()
    try:
        one.do(region)
    finally:
        close_old_connections()
