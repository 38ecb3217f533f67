"""Takes the jobs of a host's lanes, and of the webhooks, and runs them in threads, so that no
account ever occupies all slots of a lane.

This is enforced when a job is taken. If it were enforced when an operation is scheduled, every
transaction of an account would have to wait for one lock, and the end of an operation would have to
search other projects for the account's next operation. But only one process takes the jobs of a
lane, one after another, and it knows without a query which jobs it has under way. A job that has to
wait costs only its row.

The rule: an account may take another slot while it holds fewer slots than are free, or fewer than
two. The first account therefore gets half of the lane, and the next one half of the rest. However
many operations of some accounts hang, slots are left for the next account. Among the jobs that may
be taken, the oldest goes first. An account without a job under way may always take one, so no job
waits forever.

Of the moves that nobody waits for, only MAX_CONCURRENT_MOVES run at once. Each of them copies as
fast as the machine can, so more would only take longer each, and a client that wants to connect
waits for the whole move of its project.

Each taking of a job has an id of its own. Every HEARTBEAT_INTERVAL seconds one statement writes the
sign of life of the jobs under way, and puts back those that have had none for DEAD_AFTER seconds:
their process has died, or the answer to its taking was lost, so that it knows of none.
"""

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from django.db import Error, IntegrityError, InterfaceError, OperationalError, connection

from controlplane.database.base import release_connection
from controlplane.database.notifications import CONNECTION_CHECK_INTERVAL, listen_to
from controlplane.features import PutBack
from controlplane.models import Action, Job

log = logging.getLogger(__name__)

MIN_SHARE = 2  # slots
MAX_CONCURRENT_MOVES = 2
HEARTBEAT_INTERVAL, DEAD_AFTER = 2.0, 8.0  # seconds
# Seconds before a job that was put back runs again; of one that always raises, the pause doubles up
# to the second number. And before a failed database is asked again.
JOB_RETRY_DELAY, MAX_JOB_RETRY_DELAY, DATABASE_RETRY_DELAY = 1.0, 60.0, 0.5
# How often a job has been put back before that is a problem.
MANY_RUNS = 10

COLUMNS = ("id", "task", "subject", "action", "account_id", "runs")
# The lock keeps two jobs of one subject from running at the same time. The taking of a start is not
# flushed to disk (ARCHITECTURE.md says what need not be). If a crash of the database loses it, the
# start is taken again, or is cancelled as if it had not begun, and its attempt undoes it. Other
# takings are flushed: a deletion that has begun must never count as one that has not.
TAKE = """
UPDATE controlplane_job SET taken_by = %(taking)s, taken_at = now(), seen_at = now()
WHERE id = (
    SELECT id FROM controlplane_job AS waiting
    WHERE queue = %(queue)s AND taken_by IS NULL AND due_at <= now()
        AND NOT account_id = ANY(%(accounts)s::bigint[])
        AND NOT action = ANY(%(actions)s::text[])
        AND NOT EXISTS (
            SELECT FROM controlplane_job AS taken
            WHERE taken.taken_by IS NOT NULL
                AND taken.task = waiting.task AND taken.subject = waiting.subject
        )
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, task, subject, action, account_id, runs,
    CASE WHEN action = 'start_compute' THEN set_config('synchronous_commit', 'off', true) END
"""
# The queues with jobs that can be taken, and the jobs that were put back. A sign of life in the
# future, and a job of an operation that waits for longer than any pause, are from before the
# database's clock was set back. Of runs, the first ten and the last are kept. The function takes
# over what processes of the previous release put into the former queue (migration 0070).
BEAT = """
WITH seen AS (
    UPDATE controlplane_job SET seen_at = now()
    WHERE id = ANY(%(jobs)s::bigint[]) AND taken_by = ANY(%(takings)s::uuid[])
), put_back AS (
    UPDATE controlplane_job SET taken_by = NULL, due_at = now(),
        runs = (runs - 10) || jsonb_build_array(jsonb_build_array(taken_at, now()))
    WHERE queue = ANY(%(queues)s) AND taken_by IS NOT NULL
        AND NOT taken_by = ANY(%(takings)s::uuid[])
        AND abs(extract(epoch FROM now() - seen_at)) >= %(dead_after)s
    RETURNING queue, task, subject
), hastened AS (
    UPDATE controlplane_job SET due_at = now()
    WHERE queue = ANY(%(queues)s) AND taken_by IS NULL AND task <> 'send_deliveries'
        AND due_at > now() + interval '61 s'
)
SELECT * FROM put_back
UNION
SELECT queue, '', '' FROM controlplane_job
WHERE queue = ANY(%(queues)s) AND taken_by IS NULL AND due_at <= now()
UNION
SELECT found, '', '' FROM perch_take_over_jobs(%(queues)s::text[]) AS found
"""
# Not flushed: if it is lost, the job runs again and finds its work done.
END = """
DELETE FROM controlplane_job WHERE id = %(job)s AND taken_by = %(taking)s
RETURNING set_config('synchronous_commit', 'off', true)
"""
PUT_BACK = """
UPDATE controlplane_job SET taken_by = NULL, due_at = now() + %(delay)s * interval '1 s',
    runs = (runs - 10) || jsonb_build_array(jsonb_build_array(taken_at, now()))
WHERE id = %(job)s AND taken_by = %(taking)s
"""

# When jobs that have been put back MANY_RUNS times raised last, by the monotonic clock and by id.
failing: dict[int, float] = {}


@dataclass(eq=False)
class Queue:
    """A queue whose jobs a process runs, `slots` at a time, and of moves of projects `moves`."""

    name: str
    slots: int
    moves: int
    # By the id of the taking.
    under_way: dict[uuid.UUID | None, Job] = field(default_factory=dict)
    # Whether jobs may wait that could not be taken because of what is under way.
    has_more: bool = False

    def take(self) -> Job | None:
        """Take the next job, if there is one for which a slot is free. Raises django.db.Error."""
        # True until the answer is known: a job that ends meanwhile has changed what may be taken.
        self.has_more = True
        under_way = list(self.under_way.values())
        free = self.slots - len(under_way)
        held = Counter(job.account_id for job in under_way)
        accounts = [one for one, slots in held.items() if slots >= max(MIN_SHARE, free)]
        moving = sum(job.action == Action.MOVE_PROJECT for job in under_way) >= self.moves
        values = {
            "taking": str(taking := uuid.uuid4()),
            "queue": self.name,
            "accounts": accounts,
            "actions": [Action.MOVE_PROJECT] if moving else [],
        }
        rows = []
        if free > 0:
            # The error: another process took a job of the same webhook at the same moment.
            with suppress(IntegrityError):
                rows = connection.read(TAKE, values)  # type: ignore[attr-defined] # database.base
        self.has_more = not rows and (free <= 0 or moving or bool(accounts))
        if not rows:
            return None
        job = Job(taken_by=taking, **dict(zip(COLUMNS, rows[0], strict=False)))
        self.under_way[taking] = job
        return job


class Runner:
    """Runs the jobs of the queues until `stop` is called."""

    def __init__(
        self, queues: Iterable[Queue], do: Callable[[Job], None], *, outage: Callable[[Error], None]
    ) -> None:
        """`do` runs a job. If it raises, the job goes back into the queue. `outage` is called if
        the database fails."""
        self._queues = {queue.name: queue for queue in queues}
        self._do = do
        self._outage = outage
        self._threads = ThreadPoolExecutor(
            sum(queue.slots for queue in self._queues.values()), thread_name_prefix="job"
        )
        # The queues that may have a job to take. The set's own operations are atomic.
        self._to_look_at: set[str] = set()
        self._told = threading.Event()
        self._is_stopped = False

    def run(self) -> None:
        """Return after `stop`, when the jobs under way have ended."""
        channels = [f"perch_jobs#{name}" for name in self._queues]
        # Ends with the process.
        threading.Thread(
            target=listen_to,
            args=(channels, self),
            kwargs={"stop_check_interval": CONNECTION_CHECK_INTERVAL},
            name="job-notifications",
            daemon=True,
        ).start()
        beats_at = 0.0
        while not self._is_stopped or any(queue.under_way for queue in self._queues.values()):
            try:
                if time.monotonic() >= beats_at:
                    self._to_look_at.update(self.beat(self._queues, dead_after=DEAD_AFTER))
                    beats_at = time.monotonic() + HEARTBEAT_INTERVAL
                if not self._is_stopped:
                    self._take()
            except Error as error:
                # Of any kind: a database that is read-only for a moment raises InternalError.
                connection.close()
                self._outage(error)
                time.sleep(DATABASE_RETRY_DELAY)
            self._told.wait(beats_at - time.monotonic())
            self._told.clear()
        self._threads.shutdown()

    def stop(self) -> None:
        """Take no more jobs. May be called by a signal handler."""
        self._is_stopped = True
        self._told.set()

    def beat(self, queues: Iterable[str], *, dead_after: float) -> set[str]:
        """Write the signs of life, and put back the jobs in the queues that have had none for
        `dead_after` seconds. Must be called by the thread that takes jobs. Returns the queues that
        have a job to take. Raises django.db.Error."""
        under_way = [job for queue in self._queues.values() for job in [*queue.under_way.values()]]
        values = {
            "jobs": [job.id for job in under_way],
            "takings": [str(job.taken_by) for job in under_way],
            "queues": list(queues),
            "dead_after": dead_after,
        }
        found = connection.read(BEAT, values)  # type: ignore[attr-defined] # database.base
        for _, task, subject in found:
            if subject:
                fields = {"task": task, "subject": subject}
                log.warning("worker of a job exited, job retried", extra=fields)
        return {name for name, _, _ in found}

    # The calls of `listen_to`

    def begin(self) -> None:
        # Earlier notifications may have been missed.
        self._look_at(self._queues)

    def end(self) -> None:
        pass

    def receive(self, channel: str, payload: str) -> None:
        self._look_at([channel.partition("#")[2]])

    def _look_at(self, names: Iterable[str]) -> None:
        self._to_look_at.update(names)
        self._told.set()

    def _take(self) -> None:
        while self._to_look_at:
            queue = self._queues[self._to_look_at.pop()]
            try:
                while job := queue.take():
                    self._threads.submit(self._run, queue, job)
            except Error:
                self._to_look_at.add(queue.name)
                raise

    def _run(self, queue: Queue, job: Job) -> None:
        try:
            end, delay = END, JOB_RETRY_DELAY
            try:
                self._do(job)
                failing.pop(job.id, None)
            except PutBack:
                end = PUT_BACK
            except (OperationalError, InterfaceError) as error:
                end = PUT_BACK
                self._outage(error)
            except Exception:
                end = PUT_BACK
                delay = min(JOB_RETRY_DELAY * 2 ** len(job.runs), MAX_JOB_RETRY_DELAY)
                if len(job.runs) >= MANY_RUNS:
                    failing[job.id] = time.monotonic()
                log.exception("job failed, retried", extra={"task": job.task})
            self._write(job, end, delay)
        finally:
            release_connection()
            del queue.under_way[job.taken_by]
            if queue.has_more or self._is_stopped:
                self._look_at([queue.name])

    def _write(self, job: Job, end: str, delay: float) -> None:
        """Write the job's end, with retries: while this process lives, no other one takes the job.
        If it has stopped, the next one puts the job back."""
        values: dict[str, float | str]
        values = {"job": job.id, "taking": str(job.taken_by), "delay": delay}
        while True:
            try:
                with connection.cursor() as cursor:
                    cursor.execute(end, values)
                    if not cursor.rowcount:
                        # The earlier write succeeded although its answer was lost, or the job was
                        # put back because this process was presumed dead.
                        log.warning("job ended already", extra={"job": job.id})
                return
            except Error as error:
                connection.close()
                log.warning(
                    "job's end not written, tried again",
                    extra={"job": job.id, "error": str(error).strip()},
                )
                if self._is_stopped:
                    return
                time.sleep(JOB_RETRY_DELAY)
