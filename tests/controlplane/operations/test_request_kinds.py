"""What a request was, as its operations tell it, and which failures still need attention."""

import uuid
from typing import Any

import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import Account, Action, Branch, Endpoint, Host, Operation, Project
from controlplane.operations.engine.scheduling import KINDS
from controlplane.services.retrying import RETRY_STEPS
from tests.controlplane.rows import make_project, make_snapshot


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    """A project with the branches "branch 0" and "branch 1", each with an idle endpoint."""
    return make_project(account, host, size=2)


def send(api: DjangoClient, method: str, path: str, body: Any = None) -> list[dict[str, Any]]:
    """Send a request and return its operations, the oldest first."""
    how = {"data": body, "content_type": "application/json"} if body is not None else {}
    answer = getattr(api, method)(f"/api/v2{path}", **how)
    assert answer.status_code < 300, answer.content
    found: list[dict[str, Any]] = answer.json()["operations"]
    return found


def told(operations: list[dict[str, Any]]) -> tuple[str, str]:
    """The kind and the title, which all operations of a request share."""
    ((kind, title),) = {(one["kind"], one["title"]) for one in operations}
    return kind, title


def test_every_action_has_a_kind() -> None:
    assert set(KINDS) == set(Action)


def test_every_action_can_be_retried_but_the_deletion_of_a_project() -> None:
    """Callers no longer find the operations of a deleted project."""
    assert set(RETRY_STEPS) == set(Action) - {Action.DELETE_TENANT}


def test_a_request_for_an_endpoint(api: DjangoClient, project: Project) -> None:
    endpoint = Endpoint.objects.get(branch__name="branch 0")
    path = f"/projects/{project.id}/endpoints/{endpoint.id}"
    assert told(send(api, "post", f"{path}/start")) == (
        "start_endpoint",
        f"Start endpoint {endpoint.id}",
    )
    assert told(send(api, "post", f"{path}/restart"))[0] == "restart_endpoint"
    settings = {"endpoint": {"settings": {"pg_settings": {"work_mem": "8MB"}}}}
    assert told(send(api, "patch", path, settings)) == (
        "change_endpoint",
        f"Change endpoint {endpoint.id}: work_mem",
    )
    assert told(send(api, "post", f"{path}/suspend"))[0] == "suspend_endpoint"


def test_a_request_for_a_branch(api: DjangoClient, project: Project) -> None:
    branch = Branch.objects.get(name="branch 1")
    path = f"/projects/{project.id}/branches"
    dev = {"branch": {"name": "dev"}, "endpoints": [{"type": "read_write"}]}
    assert told(send(api, "post", path, dev)) == (
        "create_branch",
        "Create branch dev with its endpoint",
    )
    assert told(send(api, "post", path, {"branch": {"name": "bare"}}))[1] == "Create branch bare"
    role = {"role": {"name": "ann"}}
    assert told(send(api, "post", f"{path}/{branch.id}/roles", role)) == (
        "change_catalog",
        'The role "ann" was created',
    )
    source = {"source_branch_id": Branch.objects.get(name="branch 0").id}
    assert told(send(api, "post", f"{path}/{branch.id}/restore", source)) == (
        "restore_branch",
        "Restore branch branch 1 from branch 0",
    )
    made = Branch.objects.get(name="dev")
    assert told(send(api, "delete", f"{path}/{made.id}")) == (
        "delete_branch",
        "Delete branch dev and its endpoint",
    )


def test_a_request_for_a_snapshot(api: DjangoClient, project: Project) -> None:
    snapshot = make_snapshot(project)
    answer = send(api, "delete", f"/projects/{project.id}/snapshots/{snapshot.id}")
    assert told(answer) == ("delete_snapshot", "Delete snapshot rows")
    path = f"/projects/{project.id}/branches/{Branch.objects.get(name='branch 0').id}/snapshot"
    answer = send(api, "post", path, {"name": "nightly"})
    assert told(answer) == ("create_snapshot", "Create snapshot nightly")


def test_a_page_of_whole_chains_has_all_operations_of_each(
    api: DjangoClient, project: Project
) -> None:
    endpoint = Endpoint.objects.get(branch__name="branch 0")
    path = f"/projects/{project.id}"
    first, second = (send(api, "post", f"{path}/endpoints/{endpoint.id}/restart") for _ in range(2))
    listed = f"/api/v2{path}/operations?whole_chains=true&limit=1"
    page = api.get(listed).json()
    assert [one["id"] for one in page["operations"]] == [one["id"] for one in second[::-1]]
    page = api.get(f"{listed}&action=suspend_compute&cursor={page['pagination']['cursor']}").json()
    assert [one["id"] for one in page["operations"]] == [one["id"] for one in first[::-1]]
    assert api.get(f"{listed}&status=cancelled").json() == {"operations": []}


def test_a_retry_is_called_what_it_retries(api: DjangoClient, project: Project) -> None:
    endpoint = Endpoint.objects.get(branch__name="branch 0")
    path = f"/projects/{project.id}"
    restart = send(api, "post", f"{path}/endpoints/{endpoint.id}/restart")
    Operation.objects.filter(chain=restart[0]["chain_id"]).update(status="failed")
    anew = send(api, "post", f"{path}/chains/{restart[0]['chain_id']}/retry")
    assert told(anew) == told(restart)


def test_an_earlier_operation_has_neither(api: DjangoClient, project: Project) -> None:
    listed = api.get(f"/api/v2/projects/{project.id}/operations").json()["operations"]
    assert not listed[0].keys() & {"kind", "title", "superseded"}


def failed(endpoint: Endpoint, **fields: Any) -> Operation:
    about = {"project": endpoint.project, "branch": endpoint.branch, "endpoint": endpoint}
    state = {"action": "start_compute", "status": "failed", "chain": uuid.uuid4(), "resources": []}
    return Operation.objects.create(**{**about, **state, **fields})


def test_a_failure_is_superseded_once_the_same_was_done_again(
    api: DjangoClient, project: Project
) -> None:
    endpoint = Endpoint.objects.get(branch__name="branch 0")

    def superseded(operation: Operation) -> bool:
        path = f"/api/v2/projects/{project.id}/operations"
        listed = api.get(path).json()["operations"]
        (found,) = [one["superseded"] for one in listed if one["id"] == str(operation.id)]
        assert api.get(f"{path}/{operation.id}").json()["operation"]["superseded"] is found
        return bool(found)

    first = failed(endpoint)
    assert not superseded(first)
    # Neither another action, nor a repetition that goes on, nor one that never began.
    failed(endpoint, action="suspend_compute", status="finished")
    failed(endpoint, status="running")
    failed(endpoint, not_run_because=first.id)
    failed(Endpoint.objects.get(branch__name="branch 1"), status="finished")
    assert not superseded(first)
    # If it fails again, the later failure counts.
    second = failed(endpoint)
    assert superseded(first)
    assert not superseded(second)
    failed(endpoint, status="finished")
    assert superseded(second)
    # So does the failure of what is deleted, unless its deletion failed.
    third = failed(endpoint)
    deletion = failed(endpoint, action="delete_timeline")
    assert superseded(third)
    assert not superseded(deletion)
    fourth = failed(endpoint)
    Endpoint.objects.filter(id=endpoint.id).update(deleted_at=timezone.now())
    assert superseded(fourth)
