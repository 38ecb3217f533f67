"""Rules that the database enforces, whatever the code does, and generated identifiers."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from controlplane.models import Account, ApiKey, Branch, Endpoint, Host, Operation, Project
from controlplane.models.names import FIRST, SECOND, new_endpoint_id
from tests.controlplane.rows import make_project


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host, size=2)


@pytest.fixture
def other(account: Account, host: Host) -> Project:
    return make_project(account, host)


def violates(constraint: str, act: Callable[[], Any]) -> None:
    def act_to_the_end() -> None:
        with transaction.atomic():
            act()
            # Some constraints are checked only at the end of the transaction.
            connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")

    with pytest.raises(IntegrityError, match=constraint):
        act_to_the_end()


def endpoint_of(project: Project) -> Endpoint:
    return Endpoint.objects.filter(project=project)[0]


class TestEndpoints:
    def test_a_second_one_on_a_branch(self, project: Project) -> None:
        branch = endpoint_of(project).branch
        violates(
            "one_endpoint_per_branch",
            lambda: Endpoint.objects.create(project=project, branch=branch),
        )

    def test_an_endpoint_after_a_deleted_one_is_allowed(self, project: Project) -> None:
        first = endpoint_of(project)
        Endpoint.objects.filter(id=first.id).update(deleted_at=timezone.now())
        Endpoint.objects.create(project=project, branch=first.branch)

    def test_an_endpoint_on_another_projects_branch(self, project: Project, other: Project) -> None:
        branch = Branch.objects.create(project=other, name="free")
        violates(
            "endpoint_and_branch_share_a_project",
            lambda: Endpoint.objects.create(project=project, branch=branch),
        )
        violates(
            "endpoint_and_branch_share_a_project",
            lambda: Endpoint.objects.filter(project=project, id=endpoint_of(project).id).update(
                branch=branch
            ),
        )

    @pytest.mark.parametrize(
        ("values", "constraint"),
        [
            ({"current_state": "stopped"}, "endpoint_state_is_known"),
            ({"type": "read_only"}, "endpoint_type_is_known"),
            ({"pooler_mode": "session"}, "endpoint_pooler_mode_is_known"),
            ({"autoscaling_limit_min_cu": 2}, "endpoint_limits_are_ordered"),
            ({"autoscaling_limit_min_cu": 0.1}, "endpoint_limits_are_ordered"),
        ],
    )
    def test_unknown_values(
        self, project: Project, values: dict[str, Any], constraint: str
    ) -> None:
        endpoints = Endpoint.objects.filter(project=project)
        violates(constraint, lambda: endpoints.update(**values))


class TestBranches:
    def test_a_duplicate_account_name(self, project: Project) -> None:
        violates(
            "branch_name_is_unique", lambda: Branch.objects.create(project=project, name="branch 1")
        )

    def test_the_name_of_a_deleted_branch_is_free(self, project: Project) -> None:
        Branch.objects.filter(project=project, name="branch 1").update(deleted_at=timezone.now())
        Branch.objects.create(project=project, name="branch 1")

    def test_two_default_branches(self, project: Project) -> None:
        violates(
            "one_default_branch",
            lambda: Branch.objects.filter(project=project).update(default=True),
        )

    def test_a_parent_in_another_project(self, project: Project, other: Project) -> None:
        parent = Branch.objects.filter(project=other)[0]
        violates(
            "branch_and_parent_share_a_project",
            lambda: Branch.objects.create(project=project, name="child", parent=parent),
        )

    def test_a_schema_source_in_another_project(self, project: Project, other: Project) -> None:
        source = Branch.objects.filter(project=other)[0]
        violates(
            "branch_and_schema_share_a_project",
            lambda: Branch.objects.create(project=project, name="empty", schema_of=source),
        )

    def test_an_unknown_source(self, project: Project) -> None:
        branches = Branch.objects.filter(project=project)
        violates("branch_init_source_is_known", lambda: branches.update(init_source="nothing"))

    def test_an_unknown_state(self, project: Project) -> None:
        branches = Branch.objects.filter(project=project)
        violates("branch_state_is_known", lambda: branches.update(current_state="archived"))


class TestOperations:
    @pytest.mark.parametrize(
        ("values", "constraint"),
        [
            ({"action": "stop_compute"}, "operation_action_is_known"),
            ({"status": "unheard"}, "operation_status_is_known"),
        ],
    )
    def test_unknown_values(
        self, project: Project, values: dict[str, Any], constraint: str
    ) -> None:
        operations = Operation.objects.filter(project=project)
        violates(constraint, lambda: operations.update(**values))

    def test_two_operations_of_a_project_at_the_same_time(self, project: Project) -> None:
        """The cursor of the list is the time alone."""
        now = timezone.now()
        operations = Operation.objects.filter(project=project)
        violates("operations_of_a_project_in_order", lambda: operations.update(created_at=now))

    def test_operations_of_two_projects_at_the_same_time_are_allowed(
        self, project: Project, other: Project
    ) -> None:
        now = timezone.now()
        for one in (project, other):
            Operation.objects.create(
                project=one,
                action="start_compute",
                status="finished",
                chain=uuid.uuid4(),
                resources=[],
                created_at=now,
            )


class TestAccounts:
    def test_an_unknown_plan(self, account: Account) -> None:
        violates("account_plan_is_known", lambda: Account.objects.update(plan="gold"))

    def test_a_duplicate_account_name(self, account: Account) -> None:
        violates("name", lambda: Account.objects.create(name=account.name))

    def test_a_duplicate_key(self, account: Account) -> None:
        row, _ = ApiKey.issue(account, "first")
        violates(
            "digest",
            lambda: ApiKey.objects.create(account=account, name="second", digest=row.digest),
        )


def test_an_id_is_two_words_and_digits() -> None:
    assert re.fullmatch(r"ep-[a-z]+-[a-z]+-\d{6}", new_endpoint_id())


def test_there_are_many_words_and_none_twice() -> None:
    words = [*FIRST, *SECOND]
    assert len(FIRST) * len(SECOND) > 10_000
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]{2,12}", word) for word in words)
