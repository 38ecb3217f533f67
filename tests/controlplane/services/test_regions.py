"""Regions whose worker is away, are drained or removed, and their certificate authorities."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import (
    Account,
    Branch,
    Endpoint,
    EndpointState,
    Host,
    Operation,
    Project,
    Region,
)
from controlplane.services.hosts import publish_certificate_authority
from controlplane.services.waking import WakePostponed, start_for_client
from tests.controlplane.rows import make_host, make_project


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


@pytest.fixture
def path(project: Project) -> str:
    return f"/api/v2/projects/{project.id}"


def leave(host: Host, *, seconds: float = 16) -> None:
    """Make the region's worker silent for so long."""
    seen = timezone.now() - timedelta(seconds=seconds)
    Host.objects.filter(id=host.id).update(worker_seen_at=seen)


def send(api: DjangoClient, method: str, path: str, body: Any = None) -> Any:
    return api.generic(method, path, json.dumps(body or {}), "application/json")


def regions(*arguments: str) -> str:
    out = io.StringIO()
    call_command("regions", *arguments, stdout=out)
    return out.getvalue()


class TestWorkerAway:
    @pytest.mark.parametrize(
        ("method", "rest", "body"),
        [
            ("POST", "/endpoints/{endpoint}/start", None),
            ("POST", "/endpoints/{endpoint}/restart", None),
            ("POST", "/branches", {"endpoints": [{"type": "read_write"}]}),
            ("POST", "/branches/{branch}/roles", {"role": {"name": "reader"}}),
            ("DELETE", "", None),
        ],
    )
    def test_work_is_refused_with_the_reason(
        self,
        api: DjangoClient,
        host: Host,
        path: str,
        method: str,
        rest: str,
        body: Any,
        settings: Any,
    ) -> None:
        # A recoverable project needs no work yet.
        settings.RECOVERY_HOURS = 0
        leave(host)
        names = {"endpoint": Endpoint.objects.get().id, "branch": Branch.objects.get().id}
        answer = send(api, method, path + rest.format(**names), body)
        assert answer.status_code == 503
        assert 'the host "local" does not answer' in answer.json()["message"]
        # Nothing was changed.
        assert Operation.objects.exclude(status="finished").count() == 0
        assert Branch.objects.count() == 1
        assert Project.objects.filter(deleted_at=None).count() == 1

    def test_a_new_project_is_refused_too(self, api: DjangoClient, host: Host) -> None:
        leave(host)
        answer = send(api, "POST", "/api/v2/projects", {"project": {}})
        assert answer.status_code == 503
        assert Project.objects.count() == 0

    def test_a_client_gets_the_reason(self, host: Host, project: Project) -> None:
        leave(host)
        with pytest.raises(WakePostponed, match='the host "local" does not answer'):
            start_for_client(Endpoint.objects.get().id)

    def test_requests_that_need_no_worker_are_executed(
        self, api: DjangoClient, host: Host, path: str
    ) -> None:
        leave(host)
        assert send(api, "GET", path + "/endpoints").status_code == 200
        renamed = send(api, "PATCH", path, {"project": {"name": "other"}})
        assert (renamed.status_code, renamed.json()["project"]["name"]) == (200, "other")
        endpoint = path + f"/endpoints/{Endpoint.objects.get().id}"
        assert send(api, "DELETE", endpoint).status_code == 200
        assert send(api, "GET", endpoint).status_code == 404

    def test_a_restarted_worker_is_not_away(self, api: DjangoClient, host: Host, path: str) -> None:
        leave(host, seconds=10)
        endpoint = path + f"/endpoints/{Endpoint.objects.get().id}"
        assert send(api, "POST", endpoint + "/start").status_code == 200


class TestCommand:
    def test_regions_are_listed(self, host: Host, project: Project) -> None:
        leave(host, seconds=7)
        Endpoint.objects.update(current_state=EndpointState.ACTIVE)
        make_host("far-east", worker_seen_at=None)
        start_for_client(Endpoint.objects.get().id)
        heading, local, far = regions().splitlines()
        assert (
            heading.split() == "region address worker seen proxy seen projects active jobs".split()
        )
        # A busy host may need a second for the command.
        shown = local.replace("8 s ago", "7 s ago")
        assert shown.split() == "local localhost:5432 7 s ago never 1 1 0 default".split()
        assert far.split() == "far-east localhost:5432 never never 0 0 0".split()

    def test_a_drained_region_accepts_no_new_projects(
        self, api: DjangoClient, host: Host, project: Project
    ) -> None:
        assert "accepts no new projects. Left in it: 1 project." in regions("drain", "local")
        answer = send(api, "POST", "/api/v2/projects", {"project": {}})
        assert answer.status_code == 422
        assert answer.json()["message"] == 'region "local" accepts no new projects'
        start = f"/api/v2/projects/{project.id}/endpoints/{Endpoint.objects.get().id}/start"
        assert send(api, "POST", start).status_code == 200
        assert "draining" in regions()
        regions("resume", "local")
        assert send(api, "POST", "/api/v2/projects", {"project": {}}).status_code == 201

    def test_an_empty_region_is_removed(self, host: Host, project: Project) -> None:
        project.deleted_at = timezone.now()
        project.save()
        leave(host)
        assert regions("remove", "local") == "local is removed.\n"
        assert [row.objects.count() for row in (Region, Host, Project)] == [0] * 3

    def test_a_region_with_projects_is_removed_only_by_force(
        self, host: Host, project: Project
    ) -> None:
        start_for_client(Endpoint.objects.get().id)
        leave(host)
        with pytest.raises(CommandError, match="1 project, 1 unfinished operation"):
            regions("remove", "local")
        regions("remove", "local", "--force")
        rows = (Region, Host, Project, Branch, Endpoint, Operation)
        assert [row.objects.count() for row in rows] == [0] * 6
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM controlplane_job")
            assert cursor.rowcount == 0

    def test_a_region_whose_worker_runs_is_not_removed(self, host: Host) -> None:
        for force in ([], ["--force"]):
            with pytest.raises(CommandError, match="the worker of local still runs"):
                regions("remove", "local", *force)


ADDRESS = "/certificate-authority.pem"
ONE, OTHER = (f"-----BEGIN CERTIFICATE-----\n{name}\n" for name in ("one", "other"))


def test_the_authorities_of_all_hosts_are_listed_once_each(
    host: Host, client: DjangoClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, pem in (("east", OTHER), ("north", ONE), ("west", "")):
        make_host(name)
        publish_certificate_authority(name, pem)
    publish_certificate_authority(host.id, ONE)
    answer = client.get(ADDRESS)
    assert (answer.status_code, answer.content.decode()) == (200, ONE + OTHER)
    assert answer["Content-Type"] == "application/x-pem-file"
    call_command("certificate_authority")
    assert capsys.readouterr().out == ONE + OTHER


def test_without_an_authority_the_answer_is_404(host: Host, client: DjangoClient) -> None:
    publish_certificate_authority(host.id, ONE)
    # Its operator provides a certificate now.
    publish_certificate_authority(host.id, "")
    answer = client.get(ADDRESS)
    assert answer.status_code == 404
    assert "no host has a certificate authority of its own" in answer.json()["message"]
    with pytest.raises(CommandError, match="the operator provides the certificates"):
        call_command("certificate_authority")


def test_it_is_served_without_a_key(host: Host, client: DjangoClient) -> None:
    assert client.post(ADDRESS).status_code == 405
