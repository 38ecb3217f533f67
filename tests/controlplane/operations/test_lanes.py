"""Operations of one account or project do not delay those of others: lanes, and shares of them."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.models import (
    Account,
    Action,
    Endpoint,
    EndpointState,
    Host,
    Lane,
    Operation,
)
from controlplane.models import Project as ProjectRow
from controlplane.operations.details import MoveProjectDetails, SuspendComputeDetails
from controlplane.operations.engine import scheduling
from controlplane.operations.engine.scheduling import Step
from controlplane.operations.locks import locked_project
from controlplane.operations.queue.runner import Queue
from controlplane.services.waking import start_for_client
from tests.controlplane.hanging_operations import crowd
from tests.controlplane.rows import make_project
from tests.support.processes import SIGNS
from tests.support.project import Project
from tests.support.waiting import wait_for

# Seconds that another account's wake may take, most of them for the start of Postgres.
UNNOTICED = 2.5


def wake(project: Project) -> float:
    """Connect through the proxy. Returns the seconds that it took."""
    uri = project.created["connection_uris"][0]["connection_uri"]
    began = time.monotonic()
    with psycopg.connect(uri, hostaddr="127.0.0.1", connect_timeout=60) as client:
        client.execute("SELECT 1")
    return time.monotonic() - began


def under_way(project: Project) -> int:
    """Return the number of jobs that the worker has taken."""
    with project.stack.database() as database:
        jobs = database.execute("SELECT id FROM controlplane_job WHERE taken_by IS NOT NULL")
        return len(jobs.fetchall())


def lane_of(project: Project, operation_id: str) -> str:
    with project.stack.database() as database:
        query = "SELECT lane FROM controlplane_operation WHERE id = %s"
        row = database.execute(query, [operation_id]).fetchone()
    assert row is not None
    return str(row[0])


class TestOtherAccounts:
    def test_they_are_not_delayed_by_an_accounts_hanging_operations(self, project: Project) -> None:
        project.suspend()
        with crowd(project, 40) as hanging:
            hanging.start()
            # Half of the lane's slots, and no more.
            wait_for(lambda: under_way(project) == 16, "the crowd to be at work")
            assert wake(project) < UNNOTICED
            began = time.monotonic()
            project.suspend()
            assert time.monotonic() - began < UNNOTICED

    @pytest.mark.thorough
    def test_the_next_operation_of_the_share_begins_at_once(self, project: Project) -> None:
        """It is notified by the end of the one before it; it does not wait for the worker's next
        poll."""
        with crowd(project, 24) as hanging:
            ids = hanging.start()
            wait_for(lambda: under_way(project) == 16, "the crowd to be at work")
        with project.stack.database() as database:
            ended = [
                row[0]
                for row in database.execute(
                    "SELECT updated_at FROM controlplane_operation WHERE id = ANY(%s::uuid[])"
                    " ORDER BY updated_at",
                    [ids],
                )
            ]
        assert len(ended) == 24
        assert (ended[-1] - ended[0]).total_seconds() < 5


@pytest.mark.thorough
def test_a_client_moves_a_requested_start_to_its_own_lane(project: Project) -> None:
    project.suspend()
    with ThreadPoolExecutor(1) as thread:
        with project.locked():
            (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
            client = thread.submit(wake, project)
            wait_for(lambda: lane_of(project, start["id"]) == Lane.WAKES, "the client's lane")
            assert not client.done()
        client.result()
    assert project.operations()[0]["id"] == start["id"]


@pytest.mark.thorough
def test_a_stopped_worker_puts_back_jobs_that_have_not_begun(project: Project) -> None:
    def worker() -> psutil.Process | None:
        for process in psutil.Process(project.stack.pid).children(recursive=True):
            if SIGNS["worker"] in " ".join(process.cmdline()):
                return process
        return None

    with crowd(project, 4) as hanging:
        hanging.start()
        wait_for(lambda: under_way(project) == 4, "the crowd to be at work")
        stopped = worker()
        assert stopped is not None
        stopped.terminate()
        stopped.wait(10)  # although their locks are never released
        assert under_way(project) == 0
        wait_for(lambda: under_way(project) == 4, "the next worker")


@pytest.fixture
def endpoints(account: Account, host: Host) -> Sequence[Endpoint]:
    """Idle endpoints of one project in which nothing runs, in a database without a worker."""
    project = make_project(account, host, size=12)
    return list(Endpoint.objects.filter(project=project).select_related("branch", "project"))


def schedule(endpoint: Endpoint, action: Action, **how: Any) -> Operation:
    details = how.pop("details", None)
    with locked_project(endpoint.project_id) as project:
        step = Step(action, branch=endpoint.branch, endpoint=endpoint, details=details)
        (operation,) = scheduling.schedule(project, [step], **how)
    return operation


def lane_of_job(operation: Operation) -> str | None:
    """Return the lane whose queue has the operation's only job."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT queue FROM controlplane_job WHERE subject = %s",
            [str(operation.id)],
        )
        rows = cursor.fetchall()
    assert len(rows) <= 1
    return rows[0][0].removeprefix("region-local-") if rows else None


def take(operation: Operation) -> None:
    """Take the operation's job as a worker does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE controlplane_job SET taken_by = gen_random_uuid() WHERE subject = %s",
            [str(operation.id)],
        )


class TestLanes:
    @pytest.mark.parametrize(
        ("action", "lane"),
        [
            (Action.START_COMPUTE, Lane.REQUESTS),
            (Action.SUSPEND_COMPUTE, Lane.REQUESTS),
            (Action.APPLY_CONFIG, Lane.REQUESTS),
            (Action.CHECK_AVAILABILITY, Lane.UPKEEP),
            (Action.DELETE_TIMELINE, Lane.UPKEEP),
        ],
    )
    def test_an_operation_has_the_lane_of_its_action(
        self, endpoints: Sequence[Endpoint], action: Action, lane: Lane
    ) -> None:
        operation = schedule(endpoints[0], action)
        assert (operation.lane, lane_of_job(operation)) == (lane, lane)

    def test_a_chain_stays_in_one_lane(self, endpoints: Sequence[Endpoint]) -> None:
        with locked_project(endpoints[0].project_id) as project:
            steps = [
                Step(action, branch=endpoints[0].branch, endpoint=endpoints[0])
                for action in (Action.SUSPEND_COMPUTE, Action.START_COMPUTE)
            ]
            chain = scheduling.schedule(project, steps, lane=Lane.WAKES)
        assert [operation.lane for operation in chain] == [Lane.WAKES] * 2

    def test_a_wake_for_a_client_has_its_own_lane(self, endpoints: Sequence[Endpoint]) -> None:
        operation_id = start_for_client(endpoints[0].id)[0].id
        assert lane_of_job(Operation.objects.get(id=operation_id)) == Lane.WAKES


class TestMovingAhead:
    """An operation that a client waits for does not wait in a less urgent lane than the
    client's."""

    def test_an_availability_check_that_has_not_begun(self, endpoints: Sequence[Endpoint]) -> None:
        check = schedule(endpoints[0], Action.CHECK_AVAILABILITY)
        other = schedule(endpoints[1], Action.CHECK_AVAILABILITY)
        start_for_client(endpoints[0].id)
        assert lane_of_job(check) == Lane.WAKES
        assert lane_of_job(other) == Lane.UPKEEP

    def test_an_operation_that_has_begun_keeps_its_job(self, endpoints: Sequence[Endpoint]) -> None:
        check = schedule(endpoints[0], Action.CHECK_AVAILABILITY)
        take(check)
        start_for_client(endpoints[0].id)
        assert lane_of_job(check) == Lane.UPKEEP
        check.refresh_from_db()
        assert check.lane == Lane.WAKES  # for its next attempt, if there is one

    def test_all_operations_before_it(self, endpoints: Sequence[Endpoint]) -> None:
        endpoint, *_ = endpoints
        first = schedule(endpoint, Action.CHECK_AVAILABILITY)
        # This operation holds the endpoint's branch and another one, so it waits for this one as
        # well.
        with locked_project(endpoint.project_id) as project:
            (second,) = scheduling.schedule(
                project,
                [
                    Step(
                        Action.CHECK_AVAILABILITY,
                        branch=endpoints[1].branch,
                        also_holds=[endpoint.branch],
                    )
                ],
            )
        start_for_client(endpoints[1].id)
        lanes = Operation.objects.in_bulk([first.id, second.id])
        assert [row.lane for row in lanes.values()] == [Lane.WAKES] * 2
        assert lane_of_job(first) == Lane.WAKES
        assert lane_of_job(second) is None  # not dispatched yet

    def test_a_start_that_was_already_requested(self, endpoints: Sequence[Endpoint]) -> None:
        start = schedule(endpoints[0], Action.START_COMPUTE)
        assert list(start_for_client(endpoints[0].id)) == [start]
        assert lane_of_job(start) == Lane.WAKES

    def test_an_idle_suspend(self, endpoints: Sequence[Endpoint]) -> None:
        endpoint, *_ = endpoints
        Endpoint.objects.filter(id=endpoint.id).update(current_state=EndpointState.ACTIVE)
        suspend = schedule(
            endpoint,
            Action.SUSPEND_COMPUTE,
            details=SuspendComputeDetails(if_idle=True),
            lane=Lane.UPKEEP,
        )
        assert lane_of_job(suspend) == Lane.UPKEEP
        start_for_client(endpoint.id)
        assert lane_of_job(suspend) == Lane.WAKES


class TestShareOfAProject:
    def test_only_the_share_is_dispatched_and_the_rest_follows_in_order(
        self, endpoints: Sequence[Endpoint]
    ) -> None:
        operations = [schedule(endpoint, Action.START_COMPUTE) for endpoint in endpoints]
        assert [operation.status for operation in operations] == [
            *["running"] * scheduling.MAX_PER_PROJECT,
            *["scheduling"] * (len(endpoints) - scheduling.MAX_PER_PROJECT),
        ]
        # Each lane has a share of its own.
        assert Counter(lane_of_job(operation) for operation in operations)[Lane.REQUESTS] == 8
        wake_id = start_for_client(endpoints[-1].id)[0].id
        assert lane_of_job(Operation.objects.get(id=wake_id)) == Lane.WAKES

        ended, *_ = operations
        with locked_project(ended.project_id) as project:
            Operation.objects.filter(id=ended.id).update(status="finished")
            handed_over = scheduling.dispatch(project)
        assert [operation.id for operation in handed_over] == [operations[8].id]

    def test_each_project_has_its_own_share(
        self, endpoints: Sequence[Endpoint], account: Account, host: Host
    ) -> None:
        for endpoint in endpoints:
            schedule(endpoint, Action.START_COMPUTE)
        other: ProjectRow = make_project(account, host)
        operation = schedule(
            Endpoint.objects.select_related("branch").get(project=other), Action.START_COMPUTE
        )
        assert operation.status == "running"


def test_few_moves_run_at_once_beside_other_work(account: Account, host: Host) -> None:
    """A client that connects to a project waits for the whole move, so each has to be quick."""
    move: dict[str, Any] = {"holds_project": True, "details": MoveProjectDetails(to="another")}
    for action, how in ((Action.MOVE_PROJECT, move),) * 3 + ((Action.DELETE_TENANT, {}),):
        project_id = make_project(account, host).id
        with locked_project(project_id) as project:
            scheduling.schedule(project, [Step(action, **how)], lane=Lane.UPKEEP)

    def taken(queue: Queue) -> str | None:
        # A client that connects waits for each statement.
        with CaptureQueriesContext(connection) as statements:
            job = queue.take()
        assert len(statements) == 1
        return job.action if job else None

    queue = Queue(host.queue(Lane.UPKEEP), slots=20, moves=2)
    found = [taken(queue) for _ in range(4)]
    assert found == [Action.MOVE_PROJECT, Action.MOVE_PROJECT, Action.DELETE_TENANT, None]
    assert taken(Queue(queue.name, slots=20, moves=20)) == Action.MOVE_PROJECT
