"""Changes of roles and databases, as rows and operations. No compute runs."""

import json
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.models import Account, Branch, Database, Event, Host, Operation, Project, Role
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
