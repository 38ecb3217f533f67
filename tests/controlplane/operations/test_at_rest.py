"""At rest, a worker does most of its rounds seldom, and a host on which no compute runs costs the
database next to nothing; what begins on the host ends the rest."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.compute import compute
from controlplane.features import Round
from controlplane.history.keeping import _running
from controlplane.management.commands.worker import pause
from controlplane.models import Account, Endpoint, EndpointState, Host
from controlplane.operations.rounds import at_rest, reconcile, vitals
from controlplane.operations.rounds.at_rest import active, is_at_rest
from controlplane.operations.rounds.catalog_mending import mend_catalogs
from controlplane.operations.rounds.idleness import suspend_idle_endpoints
from controlplane.operations.rounds.sizes import measure_nearly_full, measure_sizes
from controlplane.operations.rounds.upkeep import all_rounds
from controlplane.usage.rounds import hold_to_quotas
from tests.controlplane.rows import make_project

LONG = 60.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compute runs here, and nothing has been under way for long."""
    monkeypatch.setattr(compute, "_may_run", set())
    monkeypatch.setattr(compute, "_working", frozenset())
    monkeypatch.setattr(at_rest, "_active_at", time.monotonic() - at_rest.AT_REST_AFTER - 1)
    # Each test that waits has an event loop of its own.
    for name, fresh in (("_loop", None), ("_is_waited_for", False), ("_ended", asyncio.Event())):
        monkeypatch.setattr(at_rest, name, fresh)


@pytest.fixture
def round_(monkeypatch: pytest.MonkeyPatch) -> Iterator[Round]:
    def look(host: Host) -> None: ...

    vitals.rounds.begin("look", 0.01)
    yield Round(0.01, look, at_rest=LONG)
    del vitals.rounds._records["look"]


class TestIsAtRest:
    def test_only_while_nothing_is_under_way_and_a_while_after(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert is_at_rest()
        with active():
            monkeypatch.setattr(at_rest, "_active_at", time.monotonic() - LONG)
            assert not is_at_rest()
        assert not is_at_rest()
        monkeypatch.setattr(at_rest, "_active_at", time.monotonic() - at_rest.AT_REST_AFTER - 1)
        assert is_at_rest()

    @pytest.mark.parametrize(
        ("name", "found"),
        [("_may_run", {"ep-a"}), ("_working", frozenset({"br-a"})), ("_may_run", None)],
    )
    def test_never_while_a_compute_may_run(
        self, monkeypatch: pytest.MonkeyPatch, name: str, found: object
    ) -> None:
        monkeypatch.setattr(compute, name, found)
        assert not is_at_rest()
        monkeypatch.setattr(compute, name, set())
        assert not is_at_rest()


class TestPauses:
    def test_a_round_waits_for_the_end_of_the_rest(self, round_: Round) -> None:
        """And then as long as it usually does."""

        async def measured() -> float:
            began = time.monotonic()
            waiting = asyncio.create_task(pause(round_))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert vitals.rounds._records["look"].interval == LONG
            begin = threading.Thread(target=self.work)
            begin.start()
            await asyncio.wait_for(waiting, 5)
            begin.join()
            return time.monotonic() - began

        assert measured_by(measured) < 2
        assert vitals.rounds._records["look"].interval == round_.interval

    def work(self) -> None:
        with active():
            pass

    def test_the_rounds_that_nobody_at_this_host_causes_go_on(self) -> None:
        """Signs of life, and what becomes due by the clock."""
        longest = {one.do.__name__: one.at_rest or one.interval for one in all_rounds()}
        assert longest["publish"] == 2
        for name in ("expire_branches", "expire_snapshots", "remove_unrecovered"):
            assert longest[name] <= 20
        assert all(one.at_rest is None or one.at_rest > one.interval for one in all_rounds())


def measured_by(measure: Any) -> float:
    """Run it in an event loop of its own."""
    result: float = asyncio.run(measure())
    return result


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What a look at all branches finds."""
    found: dict[str, str | None] = {}
    monkeypatch.setattr(compute, "running_branches", lambda **_: found)
    monkeypatch.setattr(compute, "_may_run", None)
    monkeypatch.setattr(reconcile, "_looked_at", -math.inf)
    return found


@pytest.mark.usefixtures("runs")
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


@pytest.mark.usefixtures("runs")
def test_the_rows_are_compared_in_full_now_and_then(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    project = make_project(account, host)
    reconcile.reconcile_host(host)
    with django_assert_num_queries(0):
        reconcile.reconcile_host(host)
    # An endpoint whose compute this process has never seen.
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    monkeypatch.setattr(reconcile, "FULL_LOOK_INTERVAL", 0)
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


@pytest.mark.usefixtures("runs")
def test_a_start_during_a_look_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_may_run", {"ep-ended"})

    def look(**_: object) -> dict[str, str | None]:
        compute._may_run = {*(compute._may_run or ()), "ep-started"}
        return {"br-1": "ep-runs", "br-2": None}

    monkeypatch.setattr(compute, "running_branches", look)
    compute.look_at_all()
    assert compute.possibly_running() == {"ep-runs", "ep-started"}
