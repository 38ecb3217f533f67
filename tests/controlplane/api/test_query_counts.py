"""A request costs the same number of queries however many rows there are."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account, Branch, Database, Endpoint, Host, Operation, Project, Role
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_project, make_snapshot, make_webhook

pytestmark = pytest.mark.slow

# One query each for the key, the project and the resource; a single resource is read with its
# project. One more reads pending states if operations are in progress, and one the consumption of
# projects or branches.
BUDGET = {
    "": 2,
    "/endpoints": 2,
    "/endpoints/{endpoint}": 2,
    "/endpoints/{endpoint}/pg_settings": 3,
    "/endpoints/{endpoint}/metrics": 5,
    "/metrics": 4,
    "/branches": 4,
    "/branches?limit=1&sort_by=name": 5,
    "/branches/count": 3,
    "/branches/{branch}": 3,
    "/branches/{branch}/endpoints": 2,
    "/branches/{branch}/functions": 3,
    "/branches/{branch}/buckets": 3,
    "/branches/{branch}/triggers": 3,
    "/permissions": 2,
    "/jwks": 2,
    "/limits": 3,
    "/snapshots": 3,
    "/operations": 3,
    "/operations?limit=1": 3,
    "/operations/{operation}": 2,
    "/events": 3,
    "/events?type=endpoint.*&actor=user&limit=1": 3,
}


def queries(api: DjangoClient, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        response = api.get(f"/api/v2/projects{path}")
    assert response.status_code == 200, response.content
    return len(captured)


@pytest.mark.parametrize("size", [3, 30])
def test_reading_a_projects_parts(
    api: DjangoClient, account: Account, host: Host, size: int
) -> None:
    project = make_project(account, host, size=size)
    for _ in range(size):
        make_snapshot(project)
    ids = {
        "endpoint": Endpoint.objects.filter(project=project)[0].id,
        "branch": Branch.objects.filter(project=project, hidden=False)[0].id,
        "operation": Operation.objects.filter(project=project)[0].id,
    }
    found = {path: queries(api, f"/{project.id}{path.format(**ids)}") for path in BUDGET}
    assert found == BUDGET


@pytest.mark.parametrize("size", [3, 30])
def test_reading_the_states_of_projects(
    api: DjangoClient, account: Account, host: Host, size: int
) -> None:
    for _ in range(size):
        make_project(account, host, size=2)
    assert queries(api, "/states") == 3


@pytest.mark.parametrize("size", [3, 30])
def test_listing_projects(api: DjangoClient, account: Account, host: Host, size: int) -> None:
    for _ in range(size):
        make_project(account, host)
    assert queries(api, "?limit=400") == 3
    middle = Project.objects.order_by("created_at")[size // 2]
    assert queries(api, f"?limit=400&cursor={middle.id}") == 4


@pytest.mark.parametrize("size", [3, 30])
def test_listing_webhooks_and_deliveries(api: DjangoClient, account: Account, size: int) -> None:
    webhook, *_ = [make_webhook(account) for _ in range(size)]
    for _ in range(size):
        record(happened(EventType.BRANCH_CREATED, summary="x", account_id=account.id))
    for path, budget in (("", 2), (f"/{webhook.id}", 2), (f"/{webhook.id}/deliveries", 3)):
        with CaptureQueriesContext(connection) as captured:
            response = api.get(f"/api/v2/webhooks{path}")
        assert response.status_code == 200, response.content
        assert len(captured) == budget


@pytest.mark.parametrize("size", [3, 30])
def test_a_client_that_wakes_an_endpoint(account: Account, host: Host, size: int) -> None:
    """As many as a start by the API, with the endpoint in place of the key."""
    endpoint = Endpoint.objects.filter(project=make_project(account, host, size=size))[0]
    with CaptureQueriesContext(connection) as captured:
        (start,) = start_for_client(endpoint.id)
    assert start.endpoint == endpoint
    assert len(captured) == WRITES["start"][3], "\n".join(query["sql"] for query in captured)


BRANCH = "/{project}/branches/{branch}"
ENDPOINT = "/{project}/endpoints/{endpoint}"
# Method, path, body and budget. The budget includes the key, the project and its lock, the
# beginning and the end of the transaction, one query for the events, and 4 for scheduling: the
# newest operation, the unfinished ones, the new ones, and the job of the dispatched one. What
# concerns an endpoint does not read the unfinished ones twice. The
# endpoint runs, except for a start; the branch `bare` has none.
WRITES: dict[str, tuple[str, str, Any, int]] = {
    "create a project": ("POST", "", {"project": {}}, 15),
    "rename a project": ("PATCH", "/{project}", {"project": {"name": "x"}}, 7),
    "change a project's settings": (
        "PATCH",
        "/{project}",
        {"project": {"settings": {"allowed_ips": {"ips": []}}}},
        7,
    ),
    "delete a project": ("DELETE", "/{project}", None, 10),
    "delete a project at once": ("DELETE", "/{project}", None, 14),
    "create a branch": ("POST", "/{project}/branches", {}, 17),
    "create a branch with an endpoint": (
        "POST",
        "/{project}/branches",
        {"branch": {"name": "x"}, "endpoints": [{"type": "read_write"}]},
        18,
    ),
    "rename a branch": ("PATCH", BRANCH, {"branch": {"name": "x"}}, 9),
    # The children, and the unfinished operations.
    "have a branch expire": ("PATCH", BRANCH, {"branch": {"ttl_interval_seconds": 60}}, 10),
    "create a branch with its schema alone": (
        "POST",
        "/{project}/branches",
        {"branch": {"init_source": "schema-only", "ttl_interval_seconds": 60}},
        18,
    ),
    "make a branch the default": ("POST", BRANCH + "/set_as_default", None, 11),
    "delete a branch": ("DELETE", BRANCH, None, 14),
    "restore a branch": ("POST", BRANCH + "/restore", {"source_branch_id": "{bare}"}, 15),
    "take a snapshot": ("POST", BRANCH + "/snapshot", {}, 17),
    "create an endpoint": (
        "POST",
        "/{project}/endpoints",
        {"endpoint": {"branch_id": "{bare}", "type": "read_write"}},
        12,
    ),
    "reassign": ("PATCH", ENDPOINT, {"endpoint": {"branch_id": "{bare}"}}, 13),
    "configure": ("PATCH", ENDPOINT, {"endpoint": {"autoscaling_limit_max_cu": 2}}, 11),
    "disable": ("PATCH", ENDPOINT, {"endpoint": {"disabled": True}}, 11),
    "change nothing": ("PATCH", ENDPOINT, {"endpoint": {"disabled": False}}, 6),
    "start": ("POST", ENDPOINT + "/start", None, 10),
    "suspend": ("POST", ENDPOINT + "/suspend", None, 10),
    "restart": ("POST", ENDPOINT + "/restart", None, 10),
    "delete an endpoint": ("DELETE", ENDPOINT, None, 11),
    "delete a role": ("DELETE", BRANCH + "/roles/bob", None, 16),
    "reset a password": ("POST", BRANCH + "/roles/bob/reset_password", None, 15),
    "delete a database": ("DELETE", BRANCH + "/databases/stock", None, 15),
    "create a role": ("POST", BRANCH + "/roles", {"role": {"name": "ann"}}, 15),
    "create a database": (
        "POST",
        BRANCH + "/databases",
        {"database": {"name": "orders", "owner_name": "owner"}},
        16,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("size", [3, 30])
@pytest.mark.parametrize("write", WRITES)
def test_writing(
    api: DjangoClient, account: Account, host: Host, write: str, size: int, settings: Any
) -> None:
    if write.endswith("at once"):
        settings.RECOVERY_HOURS = 0
    project = make_project(account, host, size=size)
    endpoint = Endpoint.objects.filter(project=project, branch__default=False)[0]
    bare = Branch.objects.create(project=project, name="bare", current_state="ready")
    if write != "start":
        Endpoint.objects.filter(project=project).update(
            current_state="active", started_at=timezone.now()
        )
    for branch in Branch.objects.filter(project=project):
        Role.objects.create(branch=branch, name="owner", verifier="-")
        Role.objects.create(branch=branch, name="bob", verifier="-")
        Database.objects.create(branch=branch, name="stock", owner_name="owner")
    ids = {"project": project.id, "endpoint": endpoint.id, "branch": endpoint.branch_id}
    method, path, body, budget = WRITES[write]
    text = json.dumps(body).replace("{bare}", bare.id) if body is not None else ""
    with CaptureQueriesContext(connection) as captured:
        response = api.generic(
            method, f"/api/v2/projects{path.format(**ids)}", text, content_type="application/json"
        )
    assert response.status_code in (200, 201), response.content
    assert len(captured) == budget, "\n".join(query["sql"] for query in captured)
