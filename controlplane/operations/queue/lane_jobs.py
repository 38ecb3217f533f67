"""Takes the jobs of one lane, or of the webhooks, from the queue, so that no account ever occupies
all slots of the lane.

The worker enforces this when it takes a job. If it were enforced when an operation is scheduled,
every transaction of an account would have to wait for one lock, and the end of an operation would
have to search other projects for the account's next operation. But the worker takes the jobs of a
lane one after another, and knows without a query which jobs it has under way. A job that has to
wait costs only its row.

The rule: an account may take another slot while it holds fewer slots than are free, or fewer than
two. The first account therefore gets half of the lane, and the next one half of the rest. However
many operations of some accounts hang, slots are left for the next account. Among the jobs that may
be taken, the oldest goes first. An account without a job under way may always take one, so no job
waits forever.

Of the moves that nobody waits for, only MAX_CONCURRENT_MOVES run at once. Each of them copies as
fast as the machine can, so more would only take longer each, and a client that wants to connect
waits for the whole move of its project.

If the database fails, the worker tries again to write a job's end, as often as necessary.
Procrastinate itself would try only once.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

import psycopg
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager

from controlplane import clock
from controlplane.models import Action
from controlplane.operations.queue.beat import beating

log = logging.getLogger(__name__)

MIN_SHARE = 2  # slots
MAX_CONCURRENT_MOVES = 2
WRITE_RETRY_DELAY = 1.0
# Stands for the account of a job that has none.
NO_ACCOUNT = 0

# Like procrastinate_fetch_job_v2, but it leaves out what `_Excluded` names. The lock keeps two jobs
# of one operation from running at the same time.
TAKE = """
UPDATE procrastinate_jobs SET status = 'doing', worker_id = %(worker)s
WHERE id = (
    SELECT id FROM procrastinate_jobs AS waiting
    WHERE status = 'todo' AND queue_name = ANY(%(queues)s)
        AND (scheduled_at IS NULL OR scheduled_at <= now())
        AND NOT coalesce((args->>'account')::bigint, 0) = ANY(%(accounts)s::bigint[])
        AND NOT EXISTS (
            SELECT FROM controlplane_operation AS operation
            WHERE operation.id = (waiting.args->>'operation_id')::uuid
                AND operation.action = ANY(%(actions)s::text[])
        )
        AND NOT EXISTS (
            SELECT FROM procrastinate_jobs AS taken
            WHERE taken.status = 'doing' AND taken.lock = waiting.lock
        )
    ORDER BY priority DESC, id
    LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name,
    attempts, worker_id,
    (SELECT action FROM controlplane_operation
     WHERE id = (args->>'operation_id')::uuid) AS action
"""
# The notification that Procrastinate's own triggers send when a job is inserted into a queue.
LOOK_AGAIN = """
SELECT pg_notify('procrastinate_queue_v1#' || %(queue)s, '{"type": "job_inserted", "job_id": 0}')
"""


@dataclass(frozen=True)
class _Taken:
    account: int
    # None for jobs that run no operation.
    action: str | None


@dataclass(frozen=True)
class _Excluded:
    """The jobs that may not be taken now."""

    # Accounts of which no job may be taken, because they have their share.
    accounts: list[int]
    # Operations with these actions may not be taken.
    actions: list[str]


class LaneJobs(JobManager):
    """The queue of a lane with `slots` slots, for the one worker of the lane. At most `moves` of
    them are used for moves of projects."""

    def __init__(self, connector: BaseConnector, *, slots: int, moves: int) -> None:
        super().__init__(connector)
        self._slots = slots
        self._moves = moves
        # By the job's id.
        self._under_way: dict[int, _Taken] = {}
        # Whether the last fetch may have passed over jobs because of what is under way.
        self._passed_over = False

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        excluded = self._excluded()
        try:
            rows = await self.connector.execute_query_all_async(
                TAKE, queues=list(queues or ()), worker=worker_id, **asdict(excluded)
            )
        except UniqueViolation:
            # Another worker of this queue took a job with the same lock at the same moment.
            return None
        passes_over = excluded.accounts or excluded.actions
        self._passed_over = bool(passes_over) and not rows
        if not rows:
            return None
        action = rows[0].pop("action")
        job = Job.from_row(rows[0])
        assert job.id is not None
        account = job.task_kwargs.get("account")
        account_id = account if isinstance(account, int) else NO_ACCOUNT
        self._under_way[job.id] = _Taken(account_id, action)
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        self._end(job)
        await _until_written(job, lambda: super(LaneJobs, self).finish_job(job, status, delete_job))
        await self._look_again(job)

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        self._end(job)
        # Procrastinate computes the time with this host's clock; the queue uses the database's.
        at = clock.from_host(retry_at) if retry_at else clock.now()
        await _until_written(
            job,
            lambda: super(LaneJobs, self).retry_job(job, at, priority, queue, lock),
        )
        await self._look_again(job)

    async def register_worker(self) -> int:
        worker_id = await super().register_worker()
        beating.add(worker_id)
        return worker_id

    async def unregister_worker(self, worker_id: int) -> None:
        beating.discard(worker_id)
        await super().unregister_worker(worker_id)

    async def update_heartbeat(self, worker_id: int) -> None:
        """Does nothing: `queue.beat` writes it, with those of the other queues."""

    def _excluded(self) -> _Excluded:
        under_way = self._under_way.values()
        free = self._slots - len(under_way)
        held = Counter(job.account for job in under_way if job.account != NO_ACCOUNT)
        moves = sum(job.action == Action.MOVE_PROJECT for job in under_way)
        return _Excluded(
            accounts=[account for account, slots in held.items() if slots >= max(MIN_SHARE, free)],
            actions=[Action.MOVE_PROJECT] if moves >= self._moves else [],
        )

    def _end(self, job: Job) -> None:
        assert job.id is not None
        self._under_way.pop(job.id, None)

    async def _look_again(self, job: Job) -> None:
        """Make the worker fetch the jobs that it has passed over. Otherwise it would find them only
        at its next poll."""
        if not self._passed_over:
            return
        try:
            await self.connector.execute_query_async(LOOK_AGAIN, queue=job.queue)
        except ConnectorException:
            # The job's end is written, and the worker polls soon anyway.
            return


async def _until_written(job: Job, write: Callable[[], Awaitable[None]]) -> None:
    """Write the job's end, with retries. While this worker lives, no other worker takes the job."""
    while True:
        try:
            await write()
        except ConnectorException as error:
            fields = {"job": job.id, "error": str(error.__cause__)}
            if isinstance(error.__cause__, psycopg.errors.RaiseException):
                # The queue has no such job under way: the earlier write succeeded although its
                # answer was lost, or the job was taken because this worker was presumed dead.
                log.warning("job ended already", extra=fields)
                return
            if not isinstance(error.__cause__, psycopg.OperationalError | psycopg.InterfaceError):
                raise
            log.warning("job's end not written, tried again", extra=fields)
            await asyncio.sleep(WRITE_RETRY_DELAY)
        else:
            return
