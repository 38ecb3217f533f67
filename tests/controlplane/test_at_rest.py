"""At rest, a worker does most of its rounds seldom; what begins on its host ends the rest."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.compute import compute, listing
from controlplane.compute.listing import Listing
from controlplane.features import Round
from controlplane.management.commands.worker import pause
from controlplane.models import Host
from controlplane.operations import at_rest, tasks, vitals
from controlplane.operations.at_rest import active, is_at_rest
from controlplane.operations.upkeep import all_rounds
from tests.support.waiting import wait_for

LONG = 60.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compute runs here, and nothing has been under way for long."""
    monkeypatch.setattr(compute, "_may_run", set())
    monkeypatch.setattr(compute, "_working", frozenset())
    monkeypatch.setattr(at_rest, "_active_at", time.monotonic() - at_rest.QUIET - 1)
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
        monkeypatch.setattr(at_rest, "_active_at", time.monotonic() - at_rest.QUIET - 1)
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

    @pytest.mark.parametrize(
        ("task", "does"),
        [
            ("run_operation", "engine.run"),
            ("reconcile_branch", "reconcile.reconcile_branch"),
            ("read_schema", "schemas.read_schema"),
        ],
    )
    def test_never_while_a_job_runs(
        self, monkeypatch: pytest.MonkeyPatch, task: str, does: str
    ) -> None:
        seen = []
        monkeypatch.setattr(
            f"controlplane.operations.{does}", lambda *_, **__: seen.append(is_at_rest())
        )
        monkeypatch.setattr(tasks, "earlier_runs", lambda job: ())
        job_id = "00000000-0000-0000-0000-000000000000"
        run = getattr(tasks, task)
        if task == "run_operation":
            run(SimpleNamespace(job=None), operation_id=job_id)
        else:
            run(job_id)
        assert seen == [False]


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

    def test_it_is_done_at_rest_too(self, round_: Round) -> None:
        seldom = Round(0.01, round_.do, at_rest=0.2)

        async def measured() -> float:
            began = time.monotonic()
            await pause(seldom)
            return time.monotonic() - began

        assert 0.19 < measured_by(measured) < 2

    def test_a_host_that_is_not_at_rest_changes_nothing(self, round_: Round) -> None:
        async def measured() -> float:
            began = time.monotonic()
            with active():
                await asyncio.wait_for(pause(round_), 5)
            return time.monotonic() - began

        assert measured_by(measured) < 2

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


class TestListing:
    def test_it_is_read_again_only_after_a_change(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "SETTLED", 0)
        (tmp_path / "a.x").touch()
        (tmp_path / "b.y").touch()
        names = Listing(lambda name: name.endswith(".x"))
        first = names.names(tmp_path)
        assert first == {"a.x"}
        assert names.names(tmp_path) is first
        (tmp_path / "c.x").touch()
        wait_for(lambda: names.names(tmp_path) == {"a.x", "c.x"}, "the change", timeout=5)

    def test_a_directory_that_has_just_changed_is_read_each_time(self, tmp_path: Path) -> None:
        """Another change could have the same time."""
        names = Listing()
        (tmp_path / "a").touch()
        assert names.names(tmp_path) == {"a"}
        assert names.names(tmp_path) is not names.names(tmp_path)

    def test_one_that_does_not_exist_has_no_names(self, tmp_path: Path) -> None:
        assert Listing().names(tmp_path / "none") == frozenset()
