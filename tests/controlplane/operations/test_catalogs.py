"""Changes of roles and databases as rows and operations. A start that cannot create one fails with
the reason, and a round creates it later."""

import json
import logging
import uuid
from datetime import datetime
from typing import Any

import psycopg
import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.compute import compute
from controlplane.compute.catalog.applying import Failure, RoleSpec
from controlplane.compute.catalog.reading import Found, FoundRole
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.models import (
    Account,
    Action,
    ApiKey,
    Branch,
    Database,
    Endpoint,
    EndpointState,
    Event,
    Host,
    Operation,
    Role,
)
from controlplane.operations.actions import computes
from controlplane.operations.catalog import importing
from controlplane.operations.catalog.applying import NotApplied
from controlplane.operations.rounds import catalog_mending, vitals
from controlplane.operations.rounds.catalog_mending import mend_catalogs
from tests.controlplane.rows import make_project
from tests.support.project import Project
from tests.support.waiting import wait_for

NOW = timezone.now()
MISSING = RoleSpec("missing", login=True)
PASSING = NotApplied({MISSING: Failure("canceling statement due to lock timeout")})
FINAL = NotApplied({MISSING: Failure("permission denied", is_final=True)})


@pytest.fixture
def applying(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Applying the catalog raises the exceptions that a test puts in here. No compute is needed."""
    raised: list[Exception] = []

    def bring(*args: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(computes, "apply_to_compute", bring)
    for name in ("run_compute", "prepare_for_clients", "_hold_to_limit"):
        monkeypatch.setattr(computes, name, lambda *args: None)
    return raised


class TestStart:
    @pytest.mark.parametrize(
        "error",
        [psycopg.OperationalError("timeout expired"), LockTimeout("other work"), PASSING],
        ids=lambda error: type(error).__name__,
    )
    def test_a_start_without_its_catalog_is_not_finished(
        self, applying: list[Exception], error: Exception
    ) -> None:
        applying.append(error)
        with pytest.raises(type(error)):
            computes.start(Operation(), Endpoint(id="ep-1", branch_id="br-1"))

    @pytest.mark.parametrize(("error", "failures"), [(FINAL, 0), (PASSING, 1)])
    def test_one_refused_role_does_not_lock_out_the_others(
        self,
        applying: list[Exception],
        error: Exception,
        failures: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        applying.append(error)
        with caplog.at_level(logging.WARNING):
            computes.start(
                Operation(failures_count=failures), Endpoint(id="ep-1", branch_id="br-1")
            )
        assert [record.message for record in caplog.records] == ["catalog incomplete"]


@pytest.mark.parametrize(
    ("moment", "name"),
    [({}, "present"), ({"parent_lsn": 1 << 24}, "past"), ({"parent_timestamp": NOW}, "past")],
)
def test_only_a_branch_of_the_present_takes_what_its_parent_is_given_meanwhile(
    account: Account, host: Host, moment: dict[str, Any], name: str
) -> None:
    project = make_project(account, host)
    parent = Branch.objects.get(project=project)
    child = Branch.objects.create(project=project, name="child", parent=parent, **moment)
    Operation.objects.create(
        project=project,
        branch=child,
        action=Action.CREATE_BRANCH,
        status="running",
        chain=uuid.uuid4(),
        resources=[],
    )
    Role.objects.create(branch=child, name="past", verifier="", compute_oid=16_400)
    importing._write(parent.id, Found("mark", [FoundRole(16_400, "present", True, None, None)], []))
    assert child.roles.get().name == name


class TestRound:
    @pytest.fixture
    def endpoint(self, account: Account, host: Host, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
        catalog_mending._behind.clear()
        endpoint = Endpoint.objects.get(project=make_project(account, host))
        endpoint.current_state = EndpointState.ACTIVE
        endpoint.save()
        # No compute is needed.
        monkeypatch.setattr(compute, "possibly_running", lambda: {endpoint.id})
        return endpoint

    @staticmethod
    def fall_behind(endpoint: Endpoint) -> Role:
        Branch.objects.update(catalog_revision=2, applied_catalog_revision=1)
        return Role.objects.create(branch=endpoint.branch, name="late", verifier="")

    @staticmethod
    def mendings() -> int:
        return Operation.objects.filter(action=Action.APPLY_CONFIG).count()

    @staticmethod
    def end_operations() -> None:
        Operation.objects.update(status="finished")

    def test_a_complete_catalog_is_left_alone(self, endpoint: Endpoint, host: Host) -> None:
        mend_catalogs(host)
        assert self.mendings() == 0
        assert vitals.problems() == []

    def test_a_missing_role_is_applied_and_reported_to_health(
        self, endpoint: Endpoint, host: Host
    ) -> None:
        self.fall_behind(endpoint)
        mend_catalogs(host)
        assert self.mendings() == 1
        mend_catalogs(host)  # one is in progress already
        assert self.mendings() == 1
        assert [problem["name"] for problem in vitals.problems()] == ["catalogs_behind"]
        Branch.objects.update(applied_catalog_revision=2)
        mend_catalogs(host)
        assert vitals.problems() == []

    def test_a_pending_operation_applies_the_catalog_instead(
        self, endpoint: Endpoint, host: Host
    ) -> None:
        self.fall_behind(endpoint)
        Operation.objects.update(
            status="running", initiator_type="user", resources=[endpoint.branch_id]
        )
        mend_catalogs(host)
        assert (self.mendings(), vitals.problems()) == (0, [])

    def test_a_suspended_endpoint_waits_for_its_start(self, endpoint: Endpoint, host: Host) -> None:
        self.fall_behind(endpoint)
        Endpoint.objects.update(current_state=EndpointState.IDLE)
        mend_catalogs(host)
        assert (self.mendings(), vitals.problems()) == (0, [])

    @pytest.mark.slow
    def test_pauses_between_attempts_grow(
        self, endpoint: Endpoint, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1000.0
        monkeypatch.setattr(f"{catalog_mending.__name__}.time.monotonic", lambda: now)
        self.fall_behind(endpoint)
        tried = []
        for _ in range(60):
            before = self.mendings()
            mend_catalogs(host)
            if self.mendings() > before:
                tried.append(round(now - 1000))
            self.end_operations()
            now += 1
        assert tried == [0, 5, 15, 35]

    def test_an_error_that_was_reported_to_the_owner_is_retried_seldom(
        self, endpoint: Endpoint, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        role = self.fall_behind(endpoint)
        role.catalog_error, role.catalog_error_of = "refused", role.created_at
        role.save()
        now = 1000.0
        monkeypatch.setattr(f"{catalog_mending.__name__}.time.monotonic", lambda: now)
        mend_catalogs(host)
        assert (self.mendings(), catalog_mending.endpoints_behind()) == (0, 0)
        now += catalog_mending.REFUSED_RETRY_DELAY
        mend_catalogs(host)
        assert self.mendings() == 1


def role_exists(project: Project, name: str) -> bool:
    return project.sql(f"SELECT count(*) FROM pg_roles WHERE rolname = '{name}'") == [(1,)]


def fall_behind(project: Project, name: str) -> None:
    """Leave the rows as after a start that could not create the role."""
    with project.stack.database() as database, database.transaction():
        database.execute(
            "INSERT INTO controlplane_role (branch_id, name, verifier, encrypted_password,"
            " protected, no_login, created_at, updated_at, catalog_error)"
            " VALUES (%s, %s, '', '', false, false, now(), now(), '')",
            [project.branch_id, name],
        )
        database.execute(
            "UPDATE controlplane_branch SET catalog_revision = catalog_revision + 1 WHERE id = %s",
            [project.branch_id],
        )


@pytest.mark.thorough
def test_a_role_that_cannot_be_created_locks_out_nobody_and_is_reported(
    fresh_project: Project,
) -> None:
    fresh_project.suspend()
    fall_behind(fresh_project, "pg_refused")
    fall_behind(fresh_project, "late")
    fresh_project.start()
    assert role_exists(fresh_project, "late")

    def told() -> list[str]:
        mended = [one for one in fresh_project.operations() if one["action"] == "apply_config"]
        return [one.get("error", "") for one in mended if one["status"] == "failed"]

    wait_for(told, "an operation that fails for the role")
    assert 'role "pg_refused"' in told()[0]
    assert fresh_project.endpoint()["current_state"] == "active"


@pytest.fixture
def branch(account: Account, host: Host) -> Branch:
    """A branch with an idle endpoint, a role and a database."""
    project = make_project(account, host)
    found = Branch.objects.get(project=project)
    Role.objects.create(branch=found, name="heron")
    Database.objects.create(branch=found, name="birds", owner_name="heron")
    return found


@pytest.mark.parametrize(
    "database",
    [{}, {"name": "birds"}, {"owner_name": "heron"}, {"name": "birds", "owner_name": "heron"}],
)
def test_an_unchanged_database_wakes_no_endpoint(
    api: DjangoClient, branch: Branch, database: Any
) -> None:
    operations, events = Operation.objects.count(), Event.objects.count()
    path = f"/api/v2/projects/{branch.project_id}/branches/{branch.id}/databases/birds"
    before = json.loads(api.get(path).content)["database"]
    answer = api.patch(path, json.dumps({"database": database}), content_type="application/json")
    assert answer.status_code == 200, answer.content
    body = json.loads(answer.content)
    assert (body["database"], body["operations"]) == (before, [])
    assert (Operation.objects.count(), Event.objects.count()) == (operations, events)
    revision = branch.catalog_revision
    branch.refresh_from_db()
    assert branch.catalog_revision == revision


def create_role(api: DjangoClient, branch: Branch, name: str) -> list[str]:
    """Create the role through the API. Returns the ids of its operations."""
    answer = api.post(
        f"/api/v2/projects/{branch.project_id}/branches/{branch.id}/roles",
        json.dumps({"role": {"name": name}}),
        content_type="application/json",
    )
    assert answer.status_code == 201, answer.content
    return [row["id"] for row in answer.json()["operations"]]


def test_changes_that_follow_each_other_share_the_operations_that_wait(
    api: DjangoClient, branch: Branch
) -> None:
    first, second, third, fourth = (create_role(api, branch, f"r{n}") for n in range(4))
    # The first is being applied, and may have read the rows already.
    assert first != second == third == fourth
    waiting = Operation.objects.get(id=second[0])
    created = Role.objects.get(name="r3").created_at
    assert datetime.fromisoformat(waiting.details["changed_until"]) >= created
    assert {*Event.objects.filter(type="role.created").order_by("-id")[0].operation_ids} == {
        uuid.UUID(one) for one in second
    }


def test_a_change_does_not_join_what_another_caller_has_asked_for(
    api: DjangoClient, account: Account, branch: Branch
) -> None:
    create_role(api, branch, "r0")
    waiting = create_role(api, branch, "r1")
    _, key = ApiKey.issue(account, "another")
    other = DjangoClient(HTTP_AUTHORIZATION=f"Bearer {key}")
    assert set(create_role(other, branch, "r2")).isdisjoint(waiting)


def test_a_change_does_not_overtake_a_copy_of_the_branch(api: DjangoClient, branch: Branch) -> None:
    create_role(api, branch, "r0")
    waiting = create_role(api, branch, "r1")
    copied = api.post(
        f"/api/v2/projects/{branch.project_id}/branches",
        json.dumps({"branch": {"parent_id": branch.id}}),
        content_type="application/json",
    )
    assert copied.status_code == 201, copied.content
    assert set(create_role(api, branch, "r2")).isdisjoint(waiting)
