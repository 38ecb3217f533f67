"""What a move of a project schedules, what it refuses, and who waits for the project meanwhile."""

import io
import os
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.data.state_directory import identity
from controlplane.compute.host.filesystem import lock_branches
from controlplane.database.version import perch_version
from controlplane.fleet import messages
from controlplane.fleet.messages import HostLinks, Link, MoveInterrupted, MoveRefused
from controlplane.fleet.moves import HostNotReady, empty_host, give_to_host, go_on_emptying, move
from controlplane.fleet.moving import project_move, receiving_moves
from controlplane.fleet.moving.moved_away import has_moved_away
from controlplane.models import Account, Endpoint, EndpointState, Host, Operation, Project
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.table import details_of
from controlplane.operations.details import MoveProjectDetails
from controlplane.operations.locks import locked_project
from controlplane.services.errors import Conflict, HostAway, NotFound, Unprocessable
from controlplane.services.projects import lock_project
from tests.controlplane.rows import make_host, make_project
from tests.support.client import Client
from tests.support.waiting import wait_for


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    now, version = timezone.now(), perch_version()
    Host.objects.filter(id=host.id).update(version=version, proxy_seen_at=now)
    return Project.objects.get(id=make_project(account, host).id)


@pytest.fixture
def two(project: Project) -> Host:
    """Another host of the project's region, which can have the project."""
    return make_host(
        "two",
        "local",
        version=perch_version(),
        proxy_seen_at=timezone.now(),
        peer_certificate="a certificate",
        pooling_available=True,
        state_id="of two",
    )


def test_active_endpoints_are_started_on_the_other_host(project: Project, two: Host) -> None:
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    moving, start = move(project.id, to="two")
    assert (moving.action, start.action) == ("move_project", "start_compute")
    assert moving.resources == [project.id]
    assert details_of(moving.action, moving.details) == MoveProjectDetails(to="two")
    with pytest.raises(Conflict, match="is being moved by the operation"):
        move(project.id, to="two")


def test_an_idle_project_is_only_moved(project: Project, two: Host) -> None:
    (only,) = move(project.id, to="two")
    assert (only.action, only.status) == ("move_project", "running")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"draining": True}, Conflict, "is being drained"),
        ({"version": "0.1"}, Conflict, "must both run this version"),
        ({"pg_version": 12}, Conflict, "does not have Postgres"),
        ({"peer_certificate": ""}, Conflict, "accepts nothing from other hosts"),
        ({"worker_seen_at": None}, HostAway, "does not answer"),
        ({"proxy_seen_at": timezone.now() - timedelta(minutes=1)}, HostAway, "does not answer"),
        ({"disk_free_bytes": 1, "disk_reserve_bytes": 2}, Conflict, "is full"),
    ],
)
def test_a_host_that_cannot_have_it_is_refused(
    project: Project, two: Host, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    Host.objects.filter(id="two").update(**changes)
    with pytest.raises(error, match=words):
        move(project.id, to="two")
    assert not Operation.objects.filter(action="move_project").exists()


def test_unknown_ones_its_own_host_and_another_region_are_refused(
    project: Project, two: Host
) -> None:
    with pytest.raises(NotFound, match='unknown host "moon"; use one of: local, two'):
        move(project.id, to="moon")
    with pytest.raises(NotFound, match="unknown project"):
        move("no-such-12345678", to="two")
    with pytest.raises(Conflict, match='lives on the host "local" already'):
        move(project.id, to="local")
    make_host("far", "elsewhere")
    with pytest.raises(Unprocessable, match='belongs to the region "elsewhere"'):
        move(project.id, to="far")


def test_a_drained_host_has_its_projects_moved(project: Project, two: Host) -> None:
    out = io.StringIO()
    call_command("hosts", "drain", "local", stdout=out)
    assert "Projects that are being moved: 1." in out.getvalue()
    assert Operation.objects.get(action="move_project").lane == "upkeep"
    Host.objects.filter(id="two").update(draining=True)
    stays = empty_host(Host.objects.get(id="local")).stay
    assert "is being moved by the operation" in stays[project.id]


def test_a_drain_goes_on_with_projects_whose_moves_have_failed(project: Project, two: Host) -> None:
    local, moves = Host.objects.get(id="local"), Operation.objects.filter(action="move_project")
    go_on_emptying(local)
    assert not moves.exists()
    call_command("hosts", "drain", "local", stdout=io.StringIO())
    go_on_emptying(local)
    assert moves.count() == 1
    moves.update(status="failed")
    go_on_emptying(local)
    assert sorted(one.status for one in moves) == ["failed", "running"]
    # Each failure makes the next pause longer.
    moves.update(status="failed")
    go_on_emptying(local)
    assert moves.count() == 2
    moves.update(updated_at=timezone.now() - timedelta(seconds=61))
    go_on_emptying(local)
    assert moves.count() == 3
    moves.update(status="failed")
    go_on_emptying(local)
    assert moves.count() == 3
    # An operator who drains the host again does not wait.
    call_command("hosts", "drain", "local", stdout=io.StringIO())
    assert moves.count() == 4
    moves.update(status="failed", updated_at=timezone.now() - timedelta(hours=2))
    call_command("hosts", "resume", "local", stdout=io.StringIO())
    go_on_emptying(local)
    assert moves.count() == 4


def test_a_branch_that_is_busy_on_the_other_host_only_interrupts_the_move(
    project: Project, two: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "STATE_DIR", tmp_path)
    monkeypatch.setattr(receiving_moves, "is_own", lambda host: True)
    monkeypatch.setattr(receiving_moves, "_LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(messages, "LAST_TIMEOUT", 0.1)
    (tmp_path / "branches" / project.branches.get().id).mkdir(parents=True)
    (moving,) = move(project.id, to="two")

    def answer(operation_id: str) -> None:
        ours, theirs = socket.socketpair()
        with closing(Link(ours)) as link:
            ours.sendall(b"local\n")
            link.send(move=operation_id)
            link.flush()
            receiving_moves._places.acquire()
            receiving_moves._serve(theirs, "two")
            link.receive()

    with lock_branches(project.branches.get().id), pytest.raises(MoveInterrupted, match="busy"):
        answer(str(moving.id))
    with pytest.raises(MoveRefused, match="no such operation"):
        answer("unknown")


def test_a_move_that_a_file_prevents_names_the_branch_and_is_not_tried_again(
    project: Project, two: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "STATE_DIR", tmp_path)
    (tmp_path / "locks").mkdir()
    (moving,) = move(project.id, to="two")
    branch_id = project.branches.get().id
    sparse = data_dir(branch_id) / "base" / "sparse"
    sparse.parent.mkdir(parents=True)
    sparse.touch()
    os.truncate(sparse, 15 << 40)
    ours, theirs = socket.socketpair()
    peer = Link(theirs)
    peer.send(state_id="of two")
    peer.flush()
    monkeypatch.setattr(project_move, "host_links", lambda: HostLinks(lambda to: ours, no_log))
    attempt = Attempt(moving, MoveProjectDetails(to="two"), lambda: False)
    words = f"the branch {branch_id}: its files claim far more .* remove the files of the branch"
    with closing(peer), pytest.raises(StartRefused, match=words):
        project_move.move_project(attempt)


def no_log(*parameters: Any) -> "subprocess.Popen[bytes]":
    raise AssertionError


def test_only_the_state_directory_that_has_the_data_gets_the_project(
    project: Project, two: Host
) -> None:
    (moving,) = move(project.id, to="two")
    with pytest.raises(HostNotReady):
        give_to_host(project, "two", served_by="another", by=moving)
    assert Project.objects.get(id=project.id).host_id == "local"


def test_an_operator_moves_a_project(operator: Client, alice: Client) -> None:
    path = f"/projects/{alice.new_project()['project']['id']}/move"
    for client, host, status in (
        (alice, "moon", 403),
        (operator, "moon", 404),
        (operator, "local", 409),
    ):
        assert client.call("POST", path, json={"host_id": host}).status_code == status


def test_data_stays_on_a_host_that_was_lost_and_goes_after_a_move(
    project: Project, two: Host
) -> None:
    branch = project.branches.get()
    assert not has_moved_away(branch, "local")
    (moving,) = move(project.id, to="two")
    assert not has_moved_away(branch, "local")
    Operation.objects.filter(id=moving.id).update(status="finished")
    assert has_moved_away(branch, "local")
    # The host "two", which this directory served, was lost afterwards.
    branch.copied_by = [identity()]
    common = {
        "project": project,
        "status": "finished",
        "chain": moving.chain,
        "resources": [branch.id],
    }
    lost_two = {"lost_host": "two", "ran_until": None}
    Operation.objects.create(**common, branch=branch, action="restore_from_store", details=lost_two)
    assert not has_moved_away(branch, "two")
    Operation.objects.create(**common, action="move_project", details={"to": "three"})
    assert not has_moved_away(branch, "two")
    # Newer data came back and left again.
    for host in ("two", "three"):
        Operation.objects.create(**common, action="move_project", details={"to": host})
    assert has_moved_away(branch, "two")


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
