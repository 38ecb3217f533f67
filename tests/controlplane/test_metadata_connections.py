"""The connections to the metadata have names, and no process opens more than is documented."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from django.db import connection
from django.test import override_settings

from controlplane.database.connection_counts import most_connections, needed
from controlplane.models import Account, Host
from controlplane.operations.locks import locked_project
from tests.controlplane.rows import make_project
from tests.support.client import ENDED
from tests.support.project import Project
from tests.support.waiting import load, wait_for

# docs/how-to/operating.md; the tests' services have two processes of the proxy.
DOCUMENTED = {
    "perch-api": 17,
    "perch-worker": 16,
    "perch-proxy": 10,
    "perch-metrics": 2,
    "perch-up": 2,
}
COUNT = (
    "SELECT application_name, count(*) FROM pg_stat_activity"
    " WHERE datname = 'perch' AND pid <> pg_backend_pid() GROUP BY 1"
)
CALLERS = 24


@pytest.mark.thorough
def test_no_process_has_more_than_documented(project: Project) -> None:
    most: Counter[str] = Counter()

    def create(number: int) -> None:
        client = project.client.another()
        client.post(project.path + "/branches", {"branch": {"name": f"crowd-{number}"}})
        for _ in range(10):
            client.get(project.path + "/branches")

    figures = (project.stack.state_dir / "metrics-address").read_text().strip()
    assert requests.get(figures, timeout=10).ok
    with ThreadPoolExecutor(CALLERS) as threads, project.stack.database() as watching:
        calls = [threads.submit(create, number) for number in range(CALLERS)]

        def is_settled() -> bool:
            return all(one["status"] in ENDED for one in project.operations())

        def have_ended() -> bool:
            for name, count in watching.execute(COUNT).fetchall():
                most[name] = max(most[name], count)
            return all(call.done() for call in calls) and is_settled()

        wait_for(have_ended, "the calls and their operations", timeout=120)
        for call in calls:
            call.result()
    most.pop("", None)  # of the tests
    assert set(most) == set(DOCUMENTED)
    assert {name: count for name, count in most.items() if count > DOCUMENTED[name]} == {}


@override_settings(PROXY_PROCESSES=4)
def test_two_hosts_fit_debians_limit() -> None:
    assert needed(hosts=2) == 97
    with override_settings(PROXY_PROCESSES=2):
        assert {f"perch-{name}": most for name, most in most_connections().items()} == DOCUMENTED


@pytest.mark.django_db(transaction=True)
def test_threads_that_wait_for_a_project_hold_no_connection(account: Account) -> None:
    project, other = (make_project(account, Host.objects.get()) for _ in range(2))
    begun: list[int] = []
    earlier = clients()  # threads of former tests may still have theirs

    def change(number: int) -> str:
        begun.append(Host.objects.count())  # the thread has a connection now
        return locked_in_thread(project.id)

    with ThreadPoolExecutor(9) as threads:
        with locked_project(project.id):
            waiting = [threads.submit(change, number) for number in range(8)]
            wait_for(lambda: len(begun) == 8, "all to wait", timeout=5)
            wait_for(lambda: clients() <= earlier, "all to give their connections back", timeout=5)
            locking = threads.submit(locked_in_thread, other.id)
            assert locking.result(timeout=5 * load()) == other.id
        assert {one.result() for one in waiting} == {project.id}


def clients() -> set[int]:
    """Return the server processes of the connections that clients have."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def locked_in_thread(project_id: str) -> str:
    try:
        with locked_project(project_id) as locked:
            return locked.id
    finally:
        connection.close()
