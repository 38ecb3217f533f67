"""What idle suspends remember about an endpoint, without a compute."""

from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.compute import compute, observation
from controlplane.models import Action, Branch, Endpoint, Operation
from controlplane.operations.actions import handlers
from controlplane.operations.actions.handlers import MAX_HELD, Attempt, suspend_compute
from controlplane.operations.details import SuspendComputeDetails


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of branches whose compute was stopped. Its pooled clients never leave."""
    branches: list[str] = []
    for name in ("refuse_new_clients", "accept_clients", "disconnect_clients"):
        monkeypatch.setattr(compute, name, lambda *ids: None)
    monkeypatch.setattr(compute, "disconnect_pooled_clients", lambda *ids: False)
    monkeypatch.setattr(compute, "running_endpoint", lambda branch_id: None)
    monkeypatch.setattr(compute, "stop", branches.append)
    monkeypatch.setattr(handlers, "import_before_stop", lambda branch: None)
    monkeypatch.setattr(observation, "last_activity", lambda *_: None)
    monkeypatch.setattr(handlers, "_held", type(handlers._held)())
    return branches


def suspend(*, if_idle: bool = True, used_since: bool = False) -> None:
    """Suspend the endpoint ep-1 once."""
    now = clock.now()
    noted = now + timedelta(seconds=1) if used_since else now - timedelta(hours=1)
    branch = Branch(id="br-1")
    operation = Operation(
        action=Action.SUSPEND_COMPUTE,
        branch=branch,
        endpoint=Endpoint(id="ep-1", branch=branch, last_active=noted),
        created_at=now,
    )
    details = SuspendComputeDetails(if_idle=if_idle)
    suspend_compute(Attempt(operation, details, is_awaited=lambda: False))


def test_pooled_clients_that_never_leave_delay_the_suspend_for_some_rounds(
    stopped: list[str],
) -> None:
    for _ in range(MAX_HELD):
        suspend()
    assert not stopped
    suspend()
    assert stopped == ["br-1"]


def test_use_in_between_resets_the_count(stopped: list[str]) -> None:
    for _ in range(MAX_HELD):
        suspend()
    suspend(used_since=True)
    for _ in range(MAX_HELD):
        suspend()
    assert not stopped


def test_a_requested_suspend_resets_the_count(stopped: list[str]) -> None:
    for _ in range(MAX_HELD):
        suspend()
    suspend(if_idle=False)
    assert stopped == ["br-1"]
    for _ in range(MAX_HELD):
        suspend()
    assert stopped == ["br-1"]
