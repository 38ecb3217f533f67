"""`GET /batch`: several GET requests in one."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.models import Account, Host
from controlplane.services import projects
from controlplane.services.projects import find_project, finding_once
from tests.controlplane.rows import make_project
from tests.controlplane.test_key_limits import limited
from tests.support.client import Client
from tests.support.project import Project, refusal

INVALID = 400


def batch(client: Client, *paths: str) -> list[tuple[int, Any]]:
    answer = client.call("GET", "/batch", params={"path": paths}).json()
    return [(one["status"], one["body"]) for one in answer["responses"]]


def test_each_path_is_answered_as_by_a_request_of_its_own(project: Project) -> None:
    client = project.client
    # None of them has figures that grow with time.
    paths = [
        f"{project.path}/operations?limit=2",
        project.branch_path(rest="/databases"),
        project.branch_path(rest="/roles"),
    ]
    alone = [(200, client.get(path)) for path in paths]
    assert batch(client, *paths) == alone


def test_a_refused_part_does_not_affect_the_others(project: Project, bob: Client) -> None:
    (missing, found, unknown) = batch(bob, project.path, "/auth", "/nowhere")
    assert (missing[0], missing[1]["message"]) == (404, "project not found")
    assert found == (200, bob.get("/auth"))
    assert (unknown[0], unknown[1]["request_id"]) == (404, missing[1]["request_id"])


def test_paths_are_decoded_once(project: Project) -> None:
    project.client.finish(
        project.client.post(project.branch_path(rest="/roles"), {"role": {"name": "50%2f é"}})
    )
    path = project.branch_path(rest=f"/roles/{quote('50%2f é', safe='')}")
    ((status, body),) = batch(project.client, path)
    assert (status, body["role"]["name"]) == (200, "50%2f é")


def test_a_limited_key_reaches_no_more_by_a_batch(project: Project) -> None:
    key = limited(project.client, project_id=project.id, read_only=True)
    password = f"{project.branch_path()}/roles/neondb_owner/reveal_password"
    statuses = [status for status, _ in batch(key, project.path, password, "/api_keys", "/auth")]
    assert statuses == [200, 403, 403, 200]


@pytest.mark.parametrize("path", ["/batch?path=/auth", "/docs"])
def test_a_batch_contains_neither_batches_nor_pages(alice: Client, path: str) -> None:
    ((status, body),) = batch(alice, path)
    assert status == INVALID
    assert "a batch can" in body["message"]


def test_a_batch_contains_no_stream(project: Project) -> None:
    headers = {"Accept": "text/event-stream"}
    answer = project.client.call(
        "GET", "/batch", params={"path": f"{project.path}/events"}, headers=headers
    )
    assert answer.json()["responses"][0]["body"]["events"]


@pytest.mark.parametrize("query", ["", "?path=auth", "?path=/auth&" + "path=/auth&" * 32])
def test_a_batch_has_some_paths_but_not_too_many(alice: Client, query: str) -> None:
    assert refusal(alice.call("GET", f"/batch{query}"))[0] == INVALID


@pytest.mark.django_db
def test_the_key_and_the_project_are_read_once(
    api: DjangoClient, account: Account, host: Host
) -> None:
    project = make_project(account, host)
    path = f"path=/projects/{project.id}"
    with CaptureQueriesContext(connection) as captured:
        answer = api.get(f"/api/v2/batch?{path}/endpoints&{path}/branches/count&{path}/snapshots")
    assert [one["status"] for one in answer.json()["responses"]] == [200] * 3
    assert len(captured) == 2 + 3


def test_a_batch_that_takes_long_sees_later_signs_of_life(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(account, host)
    monkeypatch.setattr(projects, "FOUND_FOR", 0.0)
    with finding_once():
        assert not find_project(account, project.id).host.is_away
        Host.objects.update(worker_seen_at=clock.now() - timedelta(days=1))
        assert find_project(account, project.id).host.is_away
