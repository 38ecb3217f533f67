"""A host on which no compute runs costs the database next to nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.compute import compute
from controlplane.models import Account, Endpoint, EndpointState, Host
from controlplane.operations import reconcile
from controlplane.operations.catalog_mending import mend_catalogs
from controlplane.operations.history import _running
from controlplane.operations.idleness import suspend_idle_endpoints
from controlplane.operations.quota_rounds import hold_to_quotas
from controlplane.operations.sizes import measure_nearly_full, measure_sizes
from tests.controlplane.rows import make_project


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What a look at all branches finds."""
    found: dict[str, str | None] = {}
    monkeypatch.setattr(compute, "running_branches", lambda **_: found)
    monkeypatch.setattr(compute, "_may_run", None)
    monkeypatch.setattr(reconcile, "_looked_at", -math.inf)
    return found


@pytest.mark.parametrize(
    "do",
    [
        *(suspend_idle_endpoints, mend_catalogs, measure_sizes, measure_nearly_full),
        *(hold_to_quotas, lambda host: list(_running(host))),
    ],
)
def test_rounds_about_running_computes_send_no_statement_while_none_runs(
    account: Account, host: Host, do: Callable[[Host], object], django_assert_num_queries: Any
) -> None:
    make_project(account, host)
    with django_assert_num_queries(0):
        do(host)


def test_the_rows_are_compared_in_full_now_and_then(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    project = make_project(account, host)
    reconcile.reconcile_host(host)
    with django_assert_num_queries(0):
        reconcile.reconcile_host(host)
    # An endpoint whose compute this process has never seen.
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    monkeypatch.setattr(reconcile, "BETWEEN_FULL_LOOKS", 0)
    reconcile.reconcile_host(host)
    assert Endpoint.objects.get(project=project).current_state == EndpointState.IDLE


def test_a_compute_that_dies_is_noticed_by_the_next_look(
    account: Account, host: Host, runs: dict[str, str | None]
) -> None:
    endpoint = Endpoint.objects.get(project=make_project(account, host))
    Endpoint.objects.update(current_state=EndpointState.ACTIVE)
    runs[endpoint.branch_id] = endpoint.id
    reconcile.reconcile_host(host)
    runs.clear()
    reconcile.reconcile_host(host)
    endpoint.refresh_from_db()
    assert endpoint.current_state == EndpointState.IDLE


def test_a_start_during_a_look_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_may_run", {"ep-ended"})

    def look(**_: object) -> dict[str, str | None]:
        compute._may_run = {*(compute._may_run or ()), "ep-started"}
        return {"br-1": "ep-runs", "br-2": None}

    monkeypatch.setattr(compute, "running_branches", look)
    compute.look_at_all()
    assert compute.may_run() == {"ep-runs", "ep-started"}
