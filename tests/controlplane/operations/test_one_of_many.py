"""One project, branch or endpoint that a round fails for ends no round of all: the others have
their turn, and the failure is the round's problem."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection

from controlplane import clock
from controlplane.compute import compute, observation
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.features import Round
from controlplane.fleet.receivers import log_receivers, receptions
from controlplane.history import keeping
from controlplane.management.commands.worker import repeat
from controlplane.models import Account, Branch, Endpoint, Host, LogReceiver, Plan, Project
from controlplane.models.consumption import consumed_by_projects
from controlplane.operations import locks
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.locks import apart, noting_failures
from controlplane.operations.rounds import idleness, sizes, vitals
from controlplane.usage import rounds
from tests.controlplane.rows import make_project

pytestmark = pytest.mark.django_db(transaction=True)
LARGEST = 2**63 - 1


@pytest.fixture
def projects(account: Account, host: Host, monkeypatch: pytest.MonkeyPatch) -> list[Project]:
    """Two, whose endpoints are active. The first is the one at fault."""
    account.plan = Plan.STANDARD
    account.save()
    made = [make_project(account, host) for _ in range(2)]
    Endpoint.objects.update(current_state="active", host=host, started_at=clock.now())
    ids = set(Endpoint.objects.values_list("id", flat=True))
    monkeypatch.setattr(compute, "possibly_running", lambda: ids)
    monkeypatch.setattr(idleness, "_looked_at", {})
    return sorted(made, key=lambda project: project.id)


def endpoint_of(project: Project) -> Endpoint:
    return Endpoint.objects.select_related("branch").get(project=project)


def bad_for(one: str, found: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """A function that fails if its first argument is, or belongs to, the one with this id."""

    def work(of: Any, *others: Any) -> Any:
        if one in (of, getattr(of, "id", None)):
            raise DataError("integer out of range")
        return found(of, *others)

    return work


def test_sizes(projects: list[Project], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = endpoint_of(projects[0])

    def measure(endpoint_id: str, branch_id: str) -> observation.Measures:
        size = LARGEST + 1 if endpoint_id == bad.id else 4711
        return observation.Measures(size, 0, observation.Written("1", 0))

    monkeypatch.setattr(observation, "measure", measure)
    with noting_failures() as failures:
        sizes.measure_sizes(projects[0].host)
    assert [type(one) for one in failures] == [DataError]
    measured = Branch.objects.filter(logical_size=4711)
    assert [branch.project_id for branch in measured] == [projects[1].id]


def test_a_position_that_cannot_be_noted_does_not_hide_the_size(
    projects: list[Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    measures = observation.Measures(4711, 0, observation.Written("1", 5))
    monkeypatch.setattr(observation, "measure", lambda *_: measures)
    bad = endpoint_of(projects[0]).branch_id
    monkeypatch.setattr(sizes, "note_written", bad_for(bad))
    sizes.measure_sizes(projects[0].host)
    assert Branch.objects.filter(logical_size=4711).count() == 2


def test_idleness(projects: list[Project], monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = map(endpoint_of, projects)
    seen = observation.Look(clock.now(), "mark", dict.fromkeys(observation.SESSIONS, 0), "18.6")
    monkeypatch.setattr(observation, "look", lambda *_: seen)
    monkeypatch.setattr(idleness, "look_and_sample", lambda *_: (seen, None))
    read: list[str] = []
    monkeypatch.setattr(idleness, "import_catalog", read.append)
    really = idleness._suspend_if_idle
    monkeypatch.setattr(idleness, "_suspend_if_idle", bad_for(bad.id, really))
    with noting_failures() as failures:
        idleness.suspend_idle_endpoints(projects[0].host)
    assert len(failures) == 1
    good.refresh_from_db()
    assert good.last_active == seen.last_activity
    assert sorted(read) == sorted([bad.id, good.id])


def test_history(projects: list[Project], monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    bad, good = map(endpoint_of, projects)
    published: list[str] = []
    publish = bad_for(bad.branch_id, lambda branch_id, *_: published.append(branch_id))
    monkeypatch.setattr(keeping, "publish", publish)
    settings.STATE_DIR.joinpath("locks").mkdir(parents=True, exist_ok=True)
    with noting_failures() as failures:
        keeping.keep_history(projects[0].host)
    assert (published, len(failures)) == ([good.branch_id], 1)
    both = {(bad.branch_id, 0), (good.branch_id, 0)}
    monkeypatch.setattr(keeping, "outdated", lambda host: both)
    published.clear()
    monkeypatch.setattr(keeping, "chains_of", lambda branch_id: [])
    keeping.remove_outdated(projects[0].host)
    assert published == [good.branch_id]


def test_quotas(projects: list[Project], monkeypatch: pytest.MonkeyPatch) -> None:
    for project in projects:
        project.settings = {"quota": {"active_time_seconds": 1}}
        project.save()
    doomed: list[str] = []
    suspend = bad_for(projects[0].id, lambda project_id, _: doomed.append(project_id))
    monkeypatch.setattr(rounds, "_suspend", suspend)
    monkeypatch.setattr(rounds, "_over_quota", lambda *_: {"ep": None})
    rounds.hold_to_quotas(projects[0].host)
    assert doomed == [projects[1].id]


def test_the_use_of_a_project_beyond_any_number_is_no_error_of_the_statement_for_all(
    projects: list[Project],
) -> None:
    other = Branch.objects.create(project=projects[0], name="other")
    for branch in (other, endpoint_of(projects[0]).branch):
        Branch.objects.filter(id=branch.id).update(logical_size=LARGEST, history_bytes=LARGEST)
        with connection.cursor() as cursor:
            add = "SELECT perch_add_bytes(ARRAY[%s], ARRAY[%s]::bigint[], ARRAY[%s]::bigint[])"
            cursor.execute(add, [branch.id, LARGEST, LARGEST])
    found = consumed_by_projects([project.id for project in projects])
    assert found[projects[0].id].written_bytes == LARGEST
    assert found[projects[0].id].stored_bytes == LARGEST


def test_second_hosts(projects: list[Project], monkeypatch: pytest.MonkeyPatch) -> None:
    host, branches = projects[0].host, [endpoint_of(project).branch for project in projects]
    rows = [LogReceiver.objects.create(branch=one, host=host) for one in branches]
    monkeypatch.setattr(log_receivers, "_is_all_stored", bad_for(branches[0].id, lambda _: True))
    log_receivers.forget_receivers(host)
    assert list(LogReceiver.objects.all()) == rows[:1]
    Project.objects.update(settings={"durability": "host"})
    detached: list[str] = []
    LogReceiver.objects.create(branch=branches[1], host=host)
    monkeypatch.setattr(log_receivers, "_detach", bad_for(branches[0].id, detached.append))
    log_receivers.hold_durability(host)
    assert detached == [branches[1].id]
    removed: list[str] = []
    receiving = SimpleNamespace(
        reception_ids=lambda: ["bad", "good"], remove=bad_for("bad", removed.append)
    )
    monkeypatch.setattr(receptions, "receivewal", receiving)
    monkeypatch.setattr(LogReceiver.objects, "filter", lambda **_: LogReceiver.objects.none())
    receptions.look_after_received(host)
    assert removed == ["good"]


def test_poolers(projects: list[Project], monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    bad, good = map(endpoint_of, projects)
    settings.STATE_DIR.joinpath("locks").mkdir(parents=True, exist_ok=True)
    stopped: list[str] = []
    stop = bad_for(bad.branch_id, lambda branch_id, _: stopped.append(branch_id))
    monkeypatch.setattr(idleness, "_unused_since", {bad.id: 0.0, good.id: 0.0})
    monkeypatch.setattr(idleness, "has_pooler", lambda place: True)
    monkeypatch.setattr(compute, "endpoints_with_sockets", lambda: {bad.id, good.id})
    monkeypatch.setattr(idleness, "stop_unused", stop)
    idleness.end_unused_poolers(projects[0].host)
    assert stopped == [good.branch_id]


@pytest.mark.parametrize("stored", ["10000-01-01 15:58:59+00", "294276-12-31", "0044-03-15 BC"])
def test_no_endpoint_has_a_time_that_no_program_can_read(
    projects: list[Project], stored: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE controlplane_endpoint SET last_active = %s", [stored])
    for project in projects:
        last_active = endpoint_of(project).last_active
        assert last_active is not None
        assert abs(clock.now() - last_active) < timedelta(minutes=1)


class TestApart:
    def test_an_error_of_one_is_logged_with_its_id(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR), apart("br-bad"):
            raise IntegrityError
        assert [record.__dict__["left"] for record in caplog.records] == ["br-bad"]
        assert locks._noted.get() is None

    def test_a_project_that_is_gone_is_no_problem(self) -> None:
        with noting_failures() as failures, apart("gone"), locks.locked_project("gone"):
            pass
        assert failures == []

    @pytest.mark.parametrize("error", [OperationalError, InterfaceError, HostAway, LockTimeout])
    def test_what_concerns_all_ends_the_round(self, error: type[Exception]) -> None:
        with pytest.raises(error), apart("br-any"):
            raise error

    def test_an_error_of_one_is_the_rounds_problem(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vitals, "rounds", vitals.Rounds())

        def looks_at_two(_: Host) -> None:
            for one in ("br-bad", "br-good"):
                with apart(one):
                    done.append({"br-good": one}[one])

        done: list[str] = []

        async def run() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(repeat(Round(60, looks_at_two), host), 1)

        asyncio.run(run())
        assert done == ["br-good"]
        (problem,) = vitals.rounds.problems()
        assert problem.detail == "looks_at_two fails: KeyError, for 1; the log names them"
