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

Every HEARTBEAT_INTERVAL seconds one statement writes the sign of life of the jobs under way, and
puts back those of processes that have given none for DEAD_AFTER seconds.
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
# Seconds before a job that has raised runs again, and before a failed database is asked again.
JOB_RETRY_DELAY, DATABASE_RETRY_DELAY = 1.0, 0.5

COLUMNS = ("id", "task", "subject", "action", "account_id", "runs")
# The lock keeps two jobs of one subject from running at the same time.
TAKE = """
UPDATE controlplane_job SET taken_by = %(process)s, taken_at = now(), seen_at = now()
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
RETURNING id, task, subject, action, account_id, runs
"""
# The queues with jobs that can be taken, and the jobs that were put back.
BEAT = """
WITH seen AS (
    UPDATE controlplane_job SET seen_at = now() WHERE taken_by = %(process)s
), put_back AS (
    UPDATE controlplane_job SET taken_by = NULL, due_at = now(),
        runs = runs || jsonb_build_array(jsonb_build_array(taken_at, now()))
    WHERE queue = ANY(%(queues)s) AND taken_by <> %(process)s
        AND seen_at <= now() - %(dead_after)s * interval '1 s'
    RETURNING queue, task, subject
)
SELECT * FROM put_back
UNION
SELECT queue, '', '' FROM controlplane_job
WHERE queue = ANY(%(queues)s) AND taken_by IS NULL AND due_at <= now()
"""
END = "DELETE FROM controlplane_job WHERE id = %(job)s AND taken_by = %(process)s"
PUT_BACK = """
UPDATE controlplane_job SET taken_by = NULL, due_at = now() + %(delay)s * interval '1 s',
    runs = runs || jsonb_build_array(jsonb_build_array(taken_at, now()))
WHERE id = %(job)s AND taken_by = %(process)s
"""


@dataclass(eq=False)
class Queue:
    """A queue whose jobs a process runs, `slots` at a time, and of moves of projects `moves`."""

    name: str
    slots: int
    moves: int
    under_way: dict[int, Job] = field(default_factory=dict)
    # Whether jobs may wait that could not be taken because of what is under way.
    has_more: bool = False

    def take(self, process: uuid.UUID) -> Job | None:
        """Take the next job, if there is one for which a slot is free. Raises django.db.Error."""
        # True until the answer is known: a job that ends meanwhile has changed what may be taken.
        self.has_more = True
        under_way = list(self.under_way.values())
        free = self.slots - len(under_way)
        held = Counter(job.account_id for job in under_way)
        accounts = [one for one, slots in held.items() if slots >= max(MIN_SHARE, free)]
        moving = sum(job.action == Action.MOVE_PROJECT for job in under_way) >= self.moves
        values = {
            "process": str(process),
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
        job = Job(**dict(zip(COLUMNS, rows[0], strict=True)))
        self.under_way[job.id] = job
        return job


class Runner:
    """Runs the jobs of the queues until `stop` is called."""

    def __init__(
        self, queues: Iterable[Queue], do: Callable[[Job], None], *, outage: Callable[[Error], None]
    ) -> None:
        """`do` runs a job. If it raises, the job goes back into the queue. `outage` is called if
        the database fails."""
        self.id = uuid.uuid4()
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
            except (OperationalError, InterfaceError) as error:
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
        """Write the signs of life, and put back the jobs in the queues whose process has given none
        for `dead_after` seconds. Returns the queues that have a job to take. Raises
        django.db.Error."""
        values = {"process": str(self.id), "queues": list(queues), "dead_after": dead_after}
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
                while job := queue.take(self.id):
                    self._threads.submit(self._run, queue, job)
            except Error:
                self._to_look_at.add(queue.name)
                raise

    def _run(self, queue: Queue, job: Job) -> None:
        try:
            end = END
            try:
                self._do(job)
            except PutBack:
                end = PUT_BACK
            except (OperationalError, InterfaceError) as error:
                end = PUT_BACK
                self._outage(error)
            except Exception:
                end = PUT_BACK
                log.exception("job failed, retried", extra={"task": job.task})
            self._write(job, end)
        finally:
            release_connection()
            del queue.under_way[job.id]
            if queue.has_more or self._is_stopped:
                self._look_at([queue.name])

    def _write(self, job: Job, end: str) -> None:
        """Write the job's end, with retries: while this process lives, no other one takes the job.
        If it has stopped, the next one puts the job back."""
        values: dict[str, float | str] = {
            "job": job.id,
            "process": str(self.id),
            "delay": JOB_RETRY_DELAY,
        }
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
