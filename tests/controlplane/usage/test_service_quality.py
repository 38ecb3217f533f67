"""`/healthz` names what users notice: starts that fail, branches without data, old backups."""

import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from django.utils import timezone

from controlplane.backup.taking import record_backup, record_verification
from controlplane.models import Account, Action, Branch, Host, Operation, OperationStatus, Project
from controlplane.operations import service_quality
from controlplane.operations.engine.execution import withdraw
from controlplane.operations.locks import locked_project
from controlplane.operations.rounds import vitals
from controlplane.operations.service_quality import (
    Quality,
    count_starts,
    note_start,
    sample_branches,
)
from controlplane.services.monitoring.health import examine
from tests.controlplane.rows import make_project
from tests.support.certificates import certificate
from tests.support.place import Place
from tests.support.service import Service
from tests.support.waiting import wait_for


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> Quality:
    quality = Quality()
    own = service_quality.quality.problems
    checks = [quality.problems if check == own else check for check in vitals.CHECKS]
    monkeypatch.setattr(vitals, "CHECKS", checks)
    monkeypatch.setattr(service_quality, "quality", quality)
    return quality


@pytest.fixture
def project(account: Account, host: Host, settings: Any, tmp_path: Path) -> Project:
    settings.STATE_DIR = tmp_path
    host.worker_seen_at = host.proxy_seen_at = timezone.now()
    host.save()
    project = make_project(account, host, size=4)
    Operation.objects.update(updated_at=timezone.now())
    for branch in Branch.objects.all():
        place = tmp_path / "branches" / branch.id / "data" / "global"
        place.mkdir(parents=True)
        (place / "pg_control").touch()
    return project


def names() -> list[str]:
    """The problems of /healthz after the worker's next sign of life."""
    Host.objects.update(problems=vitals.problems())
    return examine().problems


class TestStarts:
    @pytest.fixture(autouse=True)
    def starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service_quality, "_starts", {})

    def test_a_quarter_of_failures_is_a_problem(
        self, quality: Quality, host: Host, project: Project
    ) -> None:
        for number in range(4):
            note_start(f"ep-{number}", has_failed=False)
        count_starts(host)
        assert (quality.started, quality.failed, names()) == (4, 0, [])
        note_start("ep-0", has_failed=True)
        count_starts(host)
        assert (quality.started, quality.failed, names()) == (4, 1, ["starts_fail"])

    @pytest.mark.parametrize(
        ("status", "because", "counted"),
        [
            ("finished", None, (1, 0)),
            ("failed", None, (1, 1)),
            ("cancelled", None, (0, 0)),
            ("failed", uuid.uuid4(), (0, 0)),
        ],
    )
    def test_the_end_of_a_start_counts_if_it_was_begun(
        self,
        quality: Quality,
        host: Host,
        project: Project,
        status: OperationStatus,
        because: uuid.UUID | None,
        counted: tuple[int, int],
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        Operation.objects.update(status="running")
        operation = Operation.objects.select_related("endpoint", "project")[0]
        with django_capture_on_commit_callbacks(execute=True), locked_project(project.id):
            withdraw([operation], OperationStatus(status), "ended", because=because)
        count_starts(host)
        assert (quality.started, quality.failed) == counted


class TestBranches:
    def lose(self, tmp_path: Path, branch: Branch) -> None:
        (tmp_path / "branches" / branch.id / "data" / "global" / "pg_control").unlink()

    def test_a_branch_without_data_is_a_problem_until_it_is_deleted(
        self, quality: Quality, host: Host, project: Project, tmp_path: Path
    ) -> None:
        sample_branches(host)
        assert (quality.sampled, names()) == (4, [])
        branch = project.branches.all()[0]
        self.lose(tmp_path, branch)
        sample_branches(host)
        assert names() == ["branches_without_data"]
        Branch.objects.filter(id=branch.id).update(deleted_at=timezone.now())
        sample_branches(host)
        assert names() == []

    @pytest.mark.parametrize(
        ("action", "missing"), [(Action.CREATE_BRANCH, 0), (Action.START_COMPUTE, 1)]
    )
    def test_a_branch_whose_data_is_being_replaced_is_not_missing(
        self,
        quality: Quality,
        host: Host,
        project: Project,
        tmp_path: Path,
        action: Action,
        missing: int,
    ) -> None:
        self.lose(tmp_path, project.branches.all()[0])
        Operation.objects.update(action=action, status="running")
        sample_branches(host)
        assert len(quality.missing) == missing

    def test_the_samples_go_round_and_remember(
        self,
        quality: Quality,
        host: Host,
        project: Project,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(service_quality, "SAMPLE_SIZE", 2)
        first, *_, last = project.branches.order_by("id")
        self.lose(tmp_path, last)
        for known in (set(), {last.id}, {last.id}):
            sample_branches(host)
            assert (quality.sampled, quality.missing) == (2, known)
        assert first.id < quality.after < last.id
        assert quality.as_json()["branches_without_data"] == 1


class TestBackups:
    def test_an_old_one_is_a_problem(self, host: Host, project: Project) -> None:
        old = timezone.now() - timedelta(hours=48)
        record_backup(host.id, old - timedelta(minutes=1))
        assert examine().problems == ["backup_old"]
        record_backup(host.id, old + timedelta(minutes=1))
        assert examine().problems == []

    def test_one_that_was_never_verified_becomes_a_problem(
        self, host: Host, project: Project
    ) -> None:
        old = timezone.now() - timedelta(days=30)
        record_backup(host.id, old - timedelta(minutes=1))
        record_backup(host.id, timezone.now())
        assert examine().problems == ["backup_unverified"]
        record_verification(host.id, old + timedelta(minutes=1))
        assert examine().problems == []

    def test_a_service_without_backups_has_no_problem(self, project: Project) -> None:
        assert examine().details["backup"] == {"taken_at": None, "verified_at": None}
        assert examine().problems == []


def test_the_proxys_problems_count_while_it_runs(host: Host, project: Project) -> None:
    problem = {"name": "certificate_ends", "detail": "…"}
    Host.objects.update(proxy_problems=[problem])
    assert examine().problems == ["certificate_ends"]
    Host.objects.update(proxy_seen_at=timezone.now() - timedelta(seconds=6))
    assert examine().problems == []


@pytest.mark.thorough
def test_a_running_service_names_what_its_users_notice(state_dir: Path) -> None:
    """Its certificate ends soon and then does not match its key, and its only branch is lost."""
    pem = certificate(state_dir, "localhost", days=13)
    key = state_dir / "key.pem"
    shutil.copy(pem, key)
    files = {"PERCH_TLS_CERTIFICATE": str(pem), "PERCH_TLS_KEY": str(key)}
    service = Service(state_dir, **files)
    try:

        def problems() -> list[str]:
            url = service.stack.api_url.replace("/api/v2", "/healthz")
            return list(requests.get(url, timeout=10).json().get("problems", []))

        wait_for(lambda: problems() == ["certificate_ends"], "the end of the certificate")
        place = Place.create(service.stack, service.client)
        place.suspend()
        shutil.rmtree(service.stack.data_dir(place.branch_id))
        assert not place.is_served()
        certificate(state_dir, "localhost")
        lost = ["branches_without_data", "certificate_unusable", "starts_fail"]
        wait_for(lambda: problems() == lost, "all problems", timeout=90)
        shutil.copy(pem, key)
        wait_for(lambda: problems() == [lost[0], lost[2]], "the new certificate")
    finally:
        service.down()
