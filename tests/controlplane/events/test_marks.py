"""`GET /mark` and `GET /projects/{project_id}/mark`: texts that change with what pages show."""

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext

from controlplane.models import Account, Host
from controlplane.services.monitoring.dashboard import mark_of_account
from tests.controlplane.api.test_key_limits import limited
from tests.controlplane.events.test_list_events import write
from tests.controlplane.rows import make_project
from tests.support.client import Client
from tests.support.project import Project, refusal


def mark(client: Client, path: str = "") -> str:
    found = client.get(f"{path}/mark")["mark"]
    assert isinstance(found, str)
    return found


def test_a_change_changes_the_marks_of_its_project_and_account(project: Project) -> None:
    client = project.client
    before = mark(client), mark(client, project.path)
    assert (mark(client), mark(client, project.path)) == before
    client.patch(project.path, {"project": {"name": "renamed"}})
    renamed = mark(client), mark(client, project.path)
    project.done(project.suspend())
    suspended = mark(client), mark(client, project.path)
    for number in (0, 1):
        assert len({before[number], renamed[number], suspended[number]}) == 3
    client.finish(client.new_project(name="another"))
    assert mark(client) != suspended[0]
    assert mark(client, project.path) == suspended[1]


def test_an_operation_changes_the_mark_before_its_end(project: Project) -> None:
    with project.locked():
        waiting = mark(project.client, project.path)
        path = project.endpoint_path(rest="/suspend")
        (operation,) = project.client.post(path)["operations"]
        assert mark(project.client, project.path) != waiting
        going_on = mark(project.client, project.path)
        with project.stack.database() as database:
            database.execute(
                "UPDATE controlplane_operation SET failures_count = 1 WHERE id = %s",
                [operation["id"]],
            )
        assert mark(project.client, project.path) != going_on


def test_an_event_that_is_committed_late_changes_the_mark(account: Account, host: Host) -> None:
    project = make_project(account, host)
    write(project, minutes=1)
    before = mark_of_account(account)
    write(project, minutes=0)
    assert mark_of_account(account) != before


@pytest.mark.django_db
def test_it_takes_one_statement(api: DjangoClient, account: Account, host: Host) -> None:
    project = make_project(account, host)
    for path in ("/mark", f"/projects/{project.id}/mark"):
        with CaptureQueriesContext(connection) as captured:
            assert api.get(f"/api/v2{path}").status_code == 200
        # And the key's.
        assert len(captured) == 2


def test_others_get_no_mark(project: Project, bob: Client) -> None:
    assert refusal(bob.call("GET", f"{project.path}/mark"))[0] == 404
    key = limited(project.client, project_id=project.id)
    assert mark(key) == mark(project.client, project.path)
