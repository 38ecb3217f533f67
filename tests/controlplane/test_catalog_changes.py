"""Changes of roles and databases, as rows and operations. No compute runs."""

import json
import uuid
from datetime import datetime
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.models import (
    Account,
    ApiKey,
    Branch,
    Database,
    Event,
    Host,
    Operation,
    Project,
    Role,
)
from tests.controlplane.rows import make_project


@pytest.fixture
def branch(account: Account, host: Host) -> Branch:
    """A branch with an idle endpoint, a role and a database."""
    project: Project = make_project(account, host)
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
