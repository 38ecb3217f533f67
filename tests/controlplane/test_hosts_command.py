"""`manage.py hosts`."""

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.compute.state_directory import identity
from controlplane.models import Account, Endpoint, Host, Project, Region
from controlplane.models.host import AWAY_AFTER
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_host, make_project

GB = 1 << 30


def hosts(*arguments: str) -> str:
    out = io.StringIO()
    call_command("hosts", *arguments, stdout=out)
    return out.getvalue()


def leave(host: Host) -> None:
    """Make the host's worker silent for long enough."""
    Host.objects.filter(id=host.id).update(worker_seen_at=timezone.now() - AWAY_AFTER)


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


def test_hosts_are_listed(host: Host, project: Project) -> None:
    make_host(
        "two", "local", cpus=8, cpu_load=0.25, disk_free_bytes=3 * GB, version="9.9", draining=True
    )
    start_for_client(Endpoint.objects.get().id)
    heading, one, two = hosts().splitlines()
    words = "host region address worker seen proxy seen version load disk free projects active jobs"
    assert heading.split() == words.split()
    assert one.split()[:2] == ["local", "local"]
    assert one.split()[-3:] == ["1", "0", "1"]
    assert two.split()[:2] == ["two", "local"]
    seen = "0 s ago never 9.9 0.2 of 8 3.22 GB 0 0 0 draining"
    assert two.split()[3:] == seen.split()


def test_a_draining_host_without_others_keeps_its_projects(host: Host, project: Project) -> None:
    said = hosts("drain", "local")
    assert "local gets no new projects. Projects that are being moved: 0." in said
    assert f"{project.id} stays: the region has no other host." in said
    assert Host.objects.get().draining
    assert start_for_client(Endpoint.objects.get().id)
    assert hosts("resume", "local") == "local gets new projects again.\n"
    assert not Host.objects.get().draining


def test_only_an_empty_host_whose_worker_is_stopped_is_removed(
    host: Host, project: Project
) -> None:
    two = make_host("two", "local")
    with pytest.raises(CommandError, match="the worker of two still runs"):
        hosts("remove", "two")
    start_for_client(Endpoint.objects.get().id)
    for left in (host, two):
        leave(left)
    with pytest.raises(CommandError, match="1 project, 1 unfinished operation"):
        hosts("remove", "local")
    assert hosts("remove", "two") == "two is removed.\n"
    hosts("remove", "local", "--force")
    counts = [row.objects.count() for row in (Host, Project, Region)]
    assert counts == [0, 0, 1]


def test_another_state_directory_takes_the_place_of_a_lost_one(
    host: Host, tmp_path: Any, settings: Any
) -> None:
    Host.objects.update(state_id="lost")
    settings.STATE_DIR = tmp_path
    with pytest.raises(CommandError, match="the worker of local still runs"):
        hosts("adopt", "local")
    leave(host)
    assert hosts("adopt", "local") == f"local is served from {tmp_path} now.\n"
    assert Host.objects.get().state_id == identity()
