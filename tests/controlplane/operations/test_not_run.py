"""Operations that do not run because an earlier one of their chain failed or was cancelled."""

import uuid
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.models import Account, Action, Endpoint, Host, Operation, OperationStatus
from controlplane.operations.engine import execution
from tests.controlplane.rows import make_project


@pytest.fixture
def chain(account: Account, host: Host) -> list[Operation]:
    """A start and the suspend that follows it. Neither has begun."""
    project = make_project(account, host)
    endpoint = Endpoint.objects.get(project=project)
    number = uuid.uuid4()
    return [
        Operation.objects.create(
            project=project,
            branch=endpoint.branch,
            endpoint=endpoint,
            action=action,
            status=OperationStatus.SCHEDULING,
            initiator_type="user",
            chain=number,
            resources=[endpoint.id],
        )
        for action in (Action.START_COMPUTE, Action.SUSPEND_COMPUTE)
    ]


def test_after_a_cancel(api: DjangoClient, chain: list[Operation]) -> None:
    first, second = chain
    path = f"/api/v2/projects/{first.project_id}"
    answer = api.post(f"{path}/operations/{first.id}/cancel")
    assert answer.status_code == 200, answer.content
    cancelled, not_run = answer.json()["operations"]
    assert (cancelled["id"], not_run["id"]) == (str(first.id), str(second.id))
    assert (cancelled["status"], not_run["status"]) == ("cancelled", "cancelled")
    assert "not_run_because" not in cancelled
    assert not_run["not_run_because"] == str(first.id)
    events = {event["operation"]["id"]: event for event in of_operations(api, path)}
    assert events[str(second.id)]["operation"] == {
        "id": str(second.id),
        "action": "suspend_compute",
        "error": not_run["error"],
        # It was not dispatched.
        "duration_ms": 0,
    }


def test_after_a_failure(
    api: DjangoClient, chain: list[Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = chain
    Operation.objects.filter(id=first.id).update(status=OperationStatus.RUNNING)
    monkeypatch.setattr(execution, "settle_compute", lambda operation, rest: None)
    execution._fail(execution._load(first.id), "no disk")
    path = f"/api/v2/projects/{first.project_id}"
    failed = api.get(f"{path}/operations/{first.id}").json()["operation"]
    not_run = api.get(f"{path}/operations/{second.id}").json()["operation"]
    assert (failed["status"], failed["error"]) == ("failed", "no disk")
    assert "not_run_because" not in failed
    assert (not_run["status"], not_run["not_run_because"]) == ("failed", str(first.id))
    (event,) = (one for one in of_operations(api, path) if one["operation_ids"] == [str(first.id)])
    assert event["operation"] == {
        "id": str(first.id),
        "action": "start_compute",
        "error": "no disk",
        "duration_ms": failed["total_duration_ms"],
    }


def of_operations(api: DjangoClient, path: str) -> list[Any]:
    found = api.get(f"{path}/events?type=operation.*").json()["events"]
    return [event for event in found if event["type"] != "operation.cancel_requested"]
