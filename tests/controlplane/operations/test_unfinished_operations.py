"""The unfinished operations of a project are bounded, whatever its owner asks for."""

from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.models import Account, Action, Endpoint, Host, Operation
from controlplane.operations.engine import scheduling
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import locked_project
from controlplane.services import account_management as management
from tests.controlplane.rows import make_project


@pytest.fixture
def endpoint(account: Account, host: Host) -> Endpoint:
    return Endpoint.objects.get(project=make_project(account, host))


def ask(api: DjangoClient, endpoint: Endpoint, verb: str) -> Any:
    return api.post(f"/api/v2/projects/{endpoint.project_id}/endpoints/{endpoint.id}/{verb}")


def test_a_restart_that_has_not_begun_answers_another(
    api: DjangoClient, endpoint: Endpoint
) -> None:
    ids = [
        [one["id"] for one in ask(api, endpoint, verb).json()["operations"]]
        for verb in ("restart", "restart", "restart", "suspend", "restart")
    ]
    # The first one has begun.
    assert ids[0] != ids[1] == ids[2]
    # What was asked for since then comes before the next restart.
    assert ids[4] not in ids[:4]


def test_callers_add_no_more_than_so_many(
    api: DjangoClient, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(scheduling, "MAX_UNFINISHED", 4)
    for verb in ("start", "suspend") * 2:
        assert ask(api, endpoint, verb).status_code == 200
    answer = ask(api, endpoint, "start")
    assert answer.status_code == 423
    assert "may have 4 unfinished operations" in answer.json()["message"]
    assert answer.headers["Retry-After"] == "1"
    # The platform is not kept from its work, nor a caller from deleting the project.
    with locked_project(endpoint.project_id) as project:
        schedule(project, [Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)])
    settings.RECOVERY_HOURS = 0
    assert api.delete(f"/api/v2/projects/{endpoint.project_id}").status_code == 200
    assert Operation.objects.filter(action="delete_tenant").exists()


def test_an_account_can_be_disabled_whatever_is_unfinished(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "MAX_UNFINISHED", 0)
    Endpoint.objects.update(current_state="active")
    account = endpoint.project.account
    with acting_as(Actor(ActorType.USER)):
        management.disable(account)
    account.refresh_from_db()
    assert account.disabled_at is not None
