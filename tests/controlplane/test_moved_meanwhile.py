"""Whoever waits for the lock of a project's row while the project is given to another host gets the
project, with its new host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from controlplane.models import Account, Host, Project
from controlplane.operations.locks import locked_project
from controlplane.services.errors import NotFound
from controlplane.services.projects import lock_project
from tests.controlplane.rows import make_host, make_project
from tests.support.waiting import wait_for

WAITING = "SELECT FROM pg_locks WHERE NOT granted"


def by_operations(account: Account, project_id: str) -> str:
    with locked_project(project_id) as project:
        return project.host.id


def by_services(account: Account, project_id: str) -> str:
    with transaction.atomic():
        return lock_project(account, project_id).host.id


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("locked", [by_operations, by_services])
def test_a_project_that_moves_while_its_lock_is_awaited_is_found(
    account: Account, host: Host, locked: Callable[[Account, str], str]
) -> None:
    project, two = make_project(account, host), make_host("two", host.region_id)

    def wait() -> str:
        try:
            return locked(account, project.id)
        finally:
            connection.close()

    with (
        connection.connection.__class__.connect(connection.connection.info.dsn) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute(
            "UPDATE controlplane_project SET host_id = %s WHERE id = %s", [two.id, project.id]
        )
        waiting = threads.submit(wait)
        wait_for(lambda: other.execute(WAITING).rowcount == 1, "the wait for the lock")
        other.commit()
        assert waiting.result(timeout=10) == two.id


def test_a_project_that_does_not_exist_is_not_found(account: Account) -> None:
    with pytest.raises(Project.DoesNotExist):
        by_operations(account, "no-such-12345678")
    with pytest.raises(NotFound):
        by_services(account, "no-such-12345678")
