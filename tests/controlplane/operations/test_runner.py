"""Whatever befalls the database or the worker, each job is run until its end is written."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import (
    DatabaseError,
    Error,
    InternalError,
    OperationalError,
    connection,
    transaction,
)
from django.db.models import F
from django.utils import timezone

from controlplane.database.base import DatabaseWrapper
from controlplane.management.commands import worker
from controlplane.models import Action, Host, Job, JobTask
from controlplane.operations.queue import runner
from controlplane.operations.queue.runner import (
    DEAD_AFTER,
    END,
    PUT_BACK,
    TAKE,
    Queue,
    Runner,
)
from controlplane.operations.rounds import vitals
from tests.support.waiting import wait_for

QUEUE = "region-local-requests"
HOUR = timedelta(hours=1)


def enqueue(subject: str = "br-a", **more: Any) -> None:
    Job.enqueue(QUEUE, task=JobTask.RECONCILE_BRANCH, subject=subject, account_id=1, **more)


def a_runner(do: Callable[[Job], None] = lambda _: None) -> Runner:
    return Runner([Queue(QUEUE, slots=4, moves=2)], do, outage=lambda _: None)


def beat(of: Runner, *, dead_after: float = DEAD_AFTER) -> set[str]:
    return of.beat([QUEUE], dead_after=dead_after)


def waits_for_disk() -> bool:
    """Return whether the commit of the present transaction waits until it is on the disk."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return bool(cursor.fetchone() == ("on",))


def pass_time() -> None:
    """As if DEAD_AFTER had passed since the signs of life."""
    Job.objects.update(seen_at=F("seen_at") - timedelta(seconds=DEAD_AFTER + 1))


def waiting() -> list[str]:
    return list(Job.objects.filter(taken_by=None).values_list("subject", flat=True))


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements whose next answer is lost: the database has executed it then."""
    lost: list[str] = []
    read = DatabaseWrapper.read

    def reading(self: DatabaseWrapper, sql: str, values: Any) -> list[tuple[Any, ...]]:
        rows = read(self, sql, values)
        if sql in lost:
            lost.remove(sql)
            raise OperationalError("server closed the connection unexpectedly")
        return rows

    monkeypatch.setattr(DatabaseWrapper, "read", reading)
    return lost


@pytest.mark.django_db
class TestTaking:
    def test_a_job_whose_taking_was_not_answered_is_put_back(self, lost_answers: list[str]) -> None:
        enqueue("br-a")
        enqueue("br-b")
        one = a_runner()
        (queue,) = one._queues.values()
        lost_answers.append(TAKE)
        with pytest.raises(OperationalError):
            queue.take()
        held = queue.take()
        assert held is not None
        assert waiting() == []
        for _ in range(3):
            pass_time()
            beat(one)
            # What is under way stays so: it has had its sign of life in the same statement.
            assert waiting() == ["br-a"]
        assert [job.subject for job in iter(queue.take, None)] == ["br-a"]

    def test_jobs_of_the_dead_are_put_back_although_the_clock_was_set_back(self) -> None:
        enqueue()
        Queue(QUEUE, slots=4, moves=2).take()
        Job.objects.update(seen_at=timezone.now() + HOUR)
        beat(a_runner(), dead_after=0)
        assert waiting() == ["br-a"]

    def test_jobs_wait_no_longer_although_the_clock_was_set_back(self) -> None:
        enqueue("br-a", at=timezone.now() + HOUR)
        enqueue("br-b", at=timezone.now() + timedelta(seconds=50))  # a pause
        sending = {"task": JobTask.SEND_DELIVERIES, "subject": "whk-c", "account_id": 1}
        Job.enqueue(QUEUE, at=timezone.now() + HOUR, **sending)
        one = a_runner()
        beat(one)
        assert beat(one) == {QUEUE}
        assert [job.subject for job in iter(next(iter(one._queues.values())).take, None)] == [
            "br-a"
        ]


@pytest.mark.django_db(transaction=True)
class TestCommits:
    """Which commits wait for the disk: those without which a crash of the database would leave
    something untrue."""

    @pytest.mark.parametrize("action", Action)
    def test_only_the_taking_of_a_start_does_not_wait(self, action: Action) -> None:
        enqueue(action=action)
        with transaction.atomic():
            assert Queue(QUEUE, slots=4, moves=2).take() is not None
            assert waits_for_disk() is (action != Action.START_COMPUTE)
        assert waits_for_disk()

    @pytest.mark.parametrize(("statement", "waits"), [(END, False), (PUT_BACK, True)])
    def test_the_end_of_a_job_does_not_wait(self, statement: str, waits: bool) -> None:
        enqueue()
        job = Queue(QUEUE, slots=4, moves=2).take()
        assert job is not None
        with transaction.atomic():
            a_runner()._write(job, statement, 1.0)
            assert waits_for_disk() is waits
        assert waits_for_disk()
        assert waiting() == ([] if statement == END else ["br-a"])


@pytest.mark.django_db(transaction=True)
class TestRunning:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner, "JOB_RETRY_DELAY", 0.01)
        monkeypatch.setattr(runner, "listen_to", lambda *_, **__: None)

    @pytest.fixture
    def running(self) -> Iterator[Callable[[Runner], None]]:
        """Runs the runner until the test ends."""
        begun = []

        def run(one: Runner) -> None:
            def in_thread() -> None:
                try:
                    one.run()
                finally:
                    connection.close()

            thread = threading.Thread(target=in_thread)
            thread.start()
            begun.append((one, thread))

        yield run
        for one, thread in begun:
            one.stop()
            thread.join(10)
            assert not thread.is_alive()

    def test_a_put_back_whose_answer_was_lost_does_not_end_the_next_run(
        self, monkeypatch: pytest.MonkeyPatch, running: Callable[[Runner], None]
    ) -> None:
        runs: list[Job] = []
        goes_on = threading.Event()

        def do(job: Job) -> None:
            runs.append(job)
            if len(runs) == 1:
                raise ValueError
            goes_on.wait(10)

        one = a_runner(do)
        (queue,) = one._queues.values()
        write, begun = Runner._write, threading.Event()

        def writing(self: Runner, job: Job, *values: Any) -> None:
            write(self, job, *values)
            if job is runs[0]:
                # The answer came to nobody, and is asked for again while the job runs.
                self._look_at([QUEUE])
                wait_for(lambda: len(runs) == 2, "the second run")
                write(self, job, *values)
                begun.set()

        monkeypatch.setattr(Runner, "_write", writing)
        enqueue()
        running(one)
        assert begun.wait(10)
        assert waiting() == []
        goes_on.set()
        wait_for(lambda: not Job.objects.exists(), "the job's end")
        wait_for(lambda: not queue.under_way, "all runs to have ended")
        assert len(runs) == 2

    def test_it_goes_on_after_any_error_of_the_database(
        self, monkeypatch: pytest.MonkeyPatch, running: Callable[[Runner], None]
    ) -> None:
        errors: list[type[Error]] = [InternalError, DatabaseError, OperationalError]
        read = DatabaseWrapper.read

        def reading(self: DatabaseWrapper, sql: str, values: Any) -> list[tuple[Any, ...]]:
            if errors:
                raise errors.pop()("cannot execute UPDATE in a read-only transaction")
            return read(self, sql, values)

        monkeypatch.setattr(DatabaseWrapper, "read", reading)
        enqueue()
        running(a_runner())
        wait_for(lambda: not Job.objects.exists(), "the job's end")
        assert errors == []

    def test_a_job_that_always_raises_costs_little_and_is_a_problem(
        self, monkeypatch: pytest.MonkeyPatch, running: Callable[[Runner], None]
    ) -> None:
        monkeypatch.setattr(runner, "MAX_JOB_RETRY_DELAY", 0.08)
        monkeypatch.setattr(runner, "HEARTBEAT_INTERVAL", 0.01)
        pauses, runs, is_broken = [], [], True
        write = Runner._write

        def writing(self: Runner, job: Job, end: str, pause: float) -> None:
            pauses.append(pause)
            write(self, job, end, pause)

        monkeypatch.setattr(Runner, "_write", writing)

        def do(job: Job) -> None:
            runs.append(job.runs)
            if is_broken:
                raise ValueError

        enqueue()
        running(a_runner(do))
        wait_for(lambda: len(runs) > 14, "many runs")
        assert [problem.name for problem in vitals.failing_jobs()] == ["jobs_fail"]
        is_broken = False
        wait_for(lambda: not Job.objects.exists(), "the job's end")
        wait_for(lambda: not vitals.failing_jobs(), "the end of the problem")
        *earlier, last = runs
        assert len(last) == 11
        # The first ten, and the last.
        assert last[:10] == earlier[10]
        assert last[10] > earlier[12][10]
        assert pauses[:6] == [0.01, 0.02, 0.04, 0.08, 0.08, 0.08]


def test_a_worker_whose_queue_fails_exits(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    one = a_runner()

    def run() -> None:
        raise psycopg.errors.ReadOnlySqlTransaction("not one of Django's")

    monkeypatch.setattr(one, "run", run)
    asyncio.run(worker.work(one, host, []))
    assert exits == [1]
