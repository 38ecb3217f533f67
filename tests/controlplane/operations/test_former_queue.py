"""Beside processes of the previous release, whose jobs are in Procrastinate's tables
(`tests/connections/versions/test_rolling_upgrade.py` has these processes)."""

import json
import uuid
from typing import Any

import pytest
from django.db import connection

from controlplane.models import Account, Action, Endpoint, Host, Job, Lane, Operation
from controlplane.operations.engine import execution, scheduling
from controlplane.operations.engine.scheduling import Step
from controlplane.operations.locks import locked_project
from controlplane.operations.queue.jobs import has_begun
from controlplane.operations.queue.runner import Queue, Runner
from tests.controlplane.rows import make_project

TABLES = """
CREATE TYPE procrastinate_job_status AS ENUM ('todo', 'doing', 'succeeded', 'failed');
CREATE TABLE procrastinate_jobs (
    id bigserial PRIMARY KEY,
    queue_name varchar(128) NOT NULL,
    task_name varchar(128) NOT NULL,
    lock text,
    args jsonb NOT NULL DEFAULT '{}',
    status procrastinate_job_status NOT NULL DEFAULT 'todo',
    scheduled_at timestamptz,
    attempts integer NOT NULL DEFAULT 0
);
"""


@pytest.fixture(autouse=True)
def _former_tables(host: Host) -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLES)


@pytest.fixture
def endpoint(account: Account, host: Host) -> Endpoint:
    project = make_project(account, host)
    return Endpoint.objects.select_related("branch", "project").get(project=project)


def schedule(endpoint: Endpoint) -> Operation:
    with locked_project(endpoint.project_id) as project:
        step = Step(Action.START_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
        (operation,) = scheduling.schedule(project, [step], lane=Lane.WAKES)
    return operation


def former_jobs() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT queue_name, task_name, lock, args FROM procrastinate_jobs ORDER BY id"
        )
        return [(*row[:3], json.loads(row[3])) for row in cursor.fetchall()]


def put(queue: str, task: str, status: str = "todo", **args: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status)"
            " VALUES (%s, %s, %s, %s)",
            [queue, f"controlplane.{task}", json.dumps(args), status],
        )


def test_a_host_of_the_previous_release_gets_its_jobs(host: Host, endpoint: Endpoint) -> None:
    Host.objects.filter(id=host.id).update(version="0.1.99")
    operation = schedule(endpoint)
    args = {"operation_id": str(operation.id), "account": endpoint.project.account_id}
    task = "controlplane.run_operation"
    assert former_jobs() == [(host.queue(Lane.WAKES), task, str(operation.id), args)]
    assert not Job.objects.exists()
    # It may have been taken meanwhile, so a cancel leaves the end to the worker.
    assert has_begun(operation)


def test_a_worker_takes_over_its_own_hosts_jobs(host: Host, endpoint: Endpoint) -> None:
    operation, account_id = schedule(endpoint), endpoint.project.account_id
    Job.objects.all().delete()
    wakes, requests = host.queue(Lane.WAKES), host.queue(Lane.REQUESTS)
    put(wakes, "run_operation", "doing", operation_id=str(operation.id), account=account_id)
    put(requests, "read_schema", reading_id=str(uuid.uuid4()), account=account_id)
    put(requests, "run_operation", "succeeded", operation_id=str(uuid.uuid4()), account=account_id)
    put("webhooks", "send_deliveries", "doing", webhook_id="whk-under-way")
    put("webhooks", "send_deliveries", webhook_id="whk-waiting")
    put("region-other-wakes", "run_operation", operation_id=str(uuid.uuid4()), account=account_id)

    queues = [Queue(name, slots=4, moves=2) for name in (wakes, requests, "webhooks")]
    runner = Runner(queues, lambda _: None, outage=lambda _: None)
    names = {queue.name for queue in queues}
    assert runner.beat(names, dead_after=8) == names
    found = [(job.task, job.account_id, job.action, len(job.runs)) for job in Job.objects.all()]
    assert sorted(found) == [
        ("read_schema", account_id, "", 0),
        ("run_operation", account_id, "start_compute", 1),
        ("send_deliveries", 0, "", 0),
    ]
    # The worker that had begun it may have died.
    assert has_begun(operation)
    assert [row[0] for row in former_jobs()] == [requests, "webhooks", "region-other-wakes"]
    assert queues[0].take() is not None


def test_a_job_of_an_operation_that_was_forgotten_does_nothing() -> None:
    execution.run(uuid.uuid4())
