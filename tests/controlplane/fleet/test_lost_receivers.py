"""What the rows say of receivers follows what the computes' configurations say, whatever fails."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.utils import timezone

from controlplane.compute import compute
from controlplane.fleet.receivers import log_receivers, lost_receivers, standby
from controlplane.fleet.receivers.lost_receivers import (
    is_attached,
    take_out_ended,
    watch_receivers,
)
from controlplane.fleet.receivers.standby import NotAttached
from controlplane.models import Account, Endpoint, Event, Host, LogReceiver, Project
from tests.controlplane.rows import make_host, make_project
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Attaching:
    """A compute of the process `postgres`, which does not really write log, and its receiver."""

    endpoint: Endpoint
    other: Host
    patch: pytest.MonkeyPatch
    postgres: subprocess.Popen[bytes]
    walsender: subprocess.Popen[bytes]
    named: str | None = None
    is_shut_down: bool = False
    # What happened, in order.
    order: list[str] = field(default_factory=list)

    @property
    def branch_id(self) -> str:
        return self.endpoint.branch_id

    def name(self, _: str, receiver: str | None, *, instead_of: str | None = None) -> None:
        if instead_of in (None, self.named):
            self.named = receiver
            self.order.append("named" if receiver else "taken out")

    def find(self, *_: object) -> int | None:
        """The walsender, if the compute answers."""
        if self.postgres.poll() is not None:
            raise psycopg.OperationalError("no such file")
        return os.pidfd_open(self.walsender.pid) if self.walsender.poll() is None else None

    def attach_first(self, branch_id: str, _: Any, receiver: str, *, timeout: float) -> int:
        self.name(branch_id, receiver)
        return os.pidfd_open(self.walsender.pid)

    def attach(self) -> None:
        log_receivers.attach(self.endpoint)

    def failing(self, module: Any, name: str, count: int = 1) -> None:
        """Let the database be away at the next calls of the function."""
        work, left = getattr(module, name), [None] * count

        def do(*arguments: Any, **named: Any) -> Any:
            if left:
                left.pop()
                raise OperationalError("the connection is closed")
            self.order.append(name)
            return work(*arguments, **named)

        self.patch.setattr(module, name, do)

    def row(self) -> LogReceiver:
        return LogReceiver.objects.get()

    def forget(self) -> None:
        """As in the next worker."""
        lost_receivers.replace(self.branch_id, None)
        self.patch.setattr(lost_receivers, "_has_looked", False)

    def events(self) -> list[str]:
        found = Event.objects.filter(type__startswith="durability.").order_by("id")
        return [one.type.removeprefix("durability.") for one in found]


@pytest.fixture
def process() -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def attaching(
    account: Account, host: Host, process: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attaching]:
    settings.STATE_DIR.joinpath("locks").mkdir(parents=True, exist_ok=True)
    project = make_project(account, host)
    project.settings["durability"] = "region"
    project.save()
    endpoint = project.branches.get().endpoints.get()
    Endpoint.objects.update(current_state="active")
    other = make_host("other", "local")
    made = Attaching(endpoint, other, monkeypatch, process(), process())

    def running() -> dict[str, str | None]:
        return {made.branch_id: endpoint.id} if made.postgres.poll() is None else {}

    monkeypatch.setattr(compute, "running_branches", running)
    monkeypatch.setattr(compute, "running_endpoint", lambda _: running().get(made.branch_id))
    monkeypatch.setattr(
        compute, "open_run", lambda *_: os.pidfd_open(made.postgres.pid) if running() else None
    )
    monkeypatch.setattr(
        lost_receivers, "read_control", lambda _: SimpleNamespace(is_shut_down=made.is_shut_down)
    )
    monkeypatch.setattr(standby, "receiver_named", lambda _: made.named)
    monkeypatch.setattr(standby, "name_standby", made.name)
    monkeypatch.setattr(standby, "walsender_descriptor", made.find)
    monkeypatch.setattr(standby, "attach", made.attach_first)
    monkeypatch.setattr(log_receivers, "second_hosts", lambda project: [other])
    monkeypatch.setattr(log_receivers, "ask_to_receive", lambda row: None)
    monkeypatch.setattr(log_receivers, "_begin_to_hold_log", lambda branch, sockets: 0)
    monkeypatch.setattr(log_receivers, "copy_to_store", lambda _: log_receivers.StoredLog(1, True))
    monkeypatch.setattr(lost_receivers, "_has_looked", True)
    monkeypatch.setattr(lost_receivers, "FIND_INTERVAL", 0.0)
    yield made
    lost_receivers.replace(made.branch_id, None)
    lost_receivers._to_find.clear()


def test_a_start_whose_note_failed_notes_the_receiver_when_it_is_run_again(
    attaching: Attaching,
) -> None:
    attaching.failing(lost_receivers, "note_attached")
    with pytest.raises(OperationalError):
        attaching.attach()
    assert not is_attached(attaching.branch_id, attaching.endpoint.id)
    attaching.attach()
    assert attaching.row().attached_at is not None
    assert is_attached(attaching.branch_id, attaching.endpoint.id)
    assert attaching.order == ["named", "note_attached"]


def test_the_next_worker_notes_the_receiver_that_the_configuration_names(
    attaching: Attaching, host: Host
) -> None:
    attaching.failing(lost_receivers, "note_attached")
    with suppress(OperationalError):
        attaching.attach()
    attaching.forget()
    watch_receivers(host)
    wait_for(lambda: attaching.row().attached_at is not None, "the note")
    assert attaching.events() == []


def test_the_loss_of_one_that_was_not_noted_yet_is_told(attaching: Attaching) -> None:
    attaching.failing(lost_receivers, "note_attached")
    with suppress(OperationalError):
        attaching.attach()
    end(attaching.walsender)
    assert take_out_ended(attaching.row().id)
    assert attaching.row().attached_at is not None
    assert attaching.row().lost_at is not None
    assert attaching.named is None
    assert attaching.events() == ["reduced"]


def test_a_compute_that_recovers_from_a_crash_goes_on_only_after_the_note(
    attaching: Attaching, host: Host
) -> None:
    attaching.attach()
    end(attaching.walsender)
    attaching.failing(lost_receivers, "note_losses", count=0)
    watch_receivers(host)
    wait_for(lambda: attaching.named is None, "commits to go on")
    assert attaching.order == ["named", "note_losses", "taken out"]
    assert attaching.row().lost_at is not None
    assert attaching.events() == ["reduced"]


def test_a_proxy_asks_again_while_the_compute_recovers(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch
) -> None:
    attaching.attach()
    receiver = attaching.row().id

    def recovers(*_: object) -> int:
        raise psycopg.OperationalError("the database system is in recovery mode")

    monkeypatch.setattr(standby, "walsender_descriptor", recovers)
    assert not take_out_ended(receiver)
    end(attaching.postgres)
    assert take_out_ended(receiver)


def test_a_worker_looks_again_for_one_whose_compute_did_not_answer(
    attaching: Attaching, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    attaching.attach()
    attaching.forget()
    end(attaching.walsender)
    answers: list[bool] = []

    def recovers(*_: object) -> None:
        answers.append(len(answers) > 1)
        if not answers[-1]:
            raise psycopg.OperationalError("the database system is in recovery mode")

    monkeypatch.setattr(standby, "walsender_descriptor", recovers)
    for _ in range(3):
        watch_receivers(host)
        wait_for(lambda: attaching.named is None or bool(lost_receivers._to_find), "the look")
    assert attaching.named is None
    assert answers == [False, False, True]
    assert attaching.row().lost_at is not None


def test_a_worker_does_not_look_for_those_of_computes_that_have_ended(
    attaching: Attaching, host: Host
) -> None:
    attaching.attach()
    attaching.forget()
    lost_receivers._to_find[attaching.branch_id] = attaching.endpoint.id, 0.0
    end(attaching.postgres)
    watch_receivers(host)
    lost_receivers.threads.submit(lambda: None).result(5)
    assert not lost_receivers._to_find
    assert attaching.events() == []


@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_a_compute_that_has_ended_has_lost_nothing(
    attaching: Attaching, host: Host, how: str
) -> None:
    attaching.attach()
    end(attaching.walsender)
    if how == "killed":
        end(attaching.postgres)
    attaching.is_shut_down = how == "shut down"
    watch_receivers(host)
    wait_for(lambda: attaching.branch_id not in lost_receivers._attached, "the end of the watch")
    assert attaching.row().lost_at is None
    assert attaching.events() == []


def test_commits_wait_while_their_loss_cannot_be_noted(attaching: Attaching, host: Host) -> None:
    attaching.attach()
    attaching.failing(lost_receivers, "note_losses", count=2)
    end(attaching.walsender)
    for _ in range(2):
        watch_receivers(host)
        wait_for(lambda: not lost_receivers._ending, "the attempt")
        assert attaching.named is not None
    watch_receivers(host)
    wait_for(lambda: attaching.named is None, "commits to go on")
    assert attaching.row().lost_at is not None


def test_no_commit_goes_on_where_the_project_does_not_live_any_more(
    attaching: Attaching, host: Host
) -> None:
    """This host was cut off, and another one has taken the project over."""
    attaching.attach()
    Host.objects.filter(id=host.id).update(lost_at=timezone.now())
    Project.objects.update(host=attaching.other)
    end(attaching.walsender)
    assert take_out_ended(attaching.row().id)
    watch_receivers(host)
    wait_for(lambda: not lost_receivers._ending, "the attempt")
    assert attaching.named is not None
    assert attaching.row().lost_at is None


def test_a_note_that_hangs_takes_no_place_of_those_that_take_receivers_out(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch
) -> None:
    attaching.attach()
    begun: list[str] = []

    def hang(branch_id: str, why: str, *, of: str) -> None:
        begun.append(of)
        time.sleep(6)

    monkeypatch.setattr(lost_receivers, "note_losses", hang)
    monkeypatch.setattr(lost_receivers, "notes", ThreadPoolExecutor(8))
    monkeypatch.setattr(lost_receivers, "NOTE_TIMEOUT", 0.1)
    receiver, began = attaching.row().id, time.monotonic()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            lost_receivers._go_on_without(attaching.branch_id, attaching.endpoint.id, receiver)
    assert time.monotonic() - began < 4
    assert begun == [receiver]
    assert attaching.named == receiver
    lost_receivers._noting.clear()


def test_a_restarted_compute_waits_until_another_receiver_is_attached(
    attaching: Attaching, process: Any
) -> None:
    """Its configuration names the former receiver still."""
    attaching.attach()
    former = attaching.row().id
    end(attaching.walsender)
    attaching.walsender = process()
    attaching.patch.setattr(
        standby, "walsender_descriptor", lambda _, one: None if one == former else attaching.find()
    )
    attaching.attach()
    assert attaching.order == ["named", "named"]
    assert attaching.named == attaching.row().id != former
    assert attaching.events() == []


def test_one_that_finds_no_other_receiver_goes_on_after_the_note(attaching: Attaching) -> None:
    attaching.attach()
    end(attaching.walsender)

    def none(project: object) -> list[Host]:
        raise NotAttached("the region has no other host")

    attaching.patch.setattr(log_receivers, "second_hosts", none)
    attaching.failing(log_receivers, "note_losses", count=0)
    attaching.attach()
    assert attaching.order == ["named", "note_losses", "taken out"]
    assert attaching.row().lost_at is not None
    assert attaching.events() == ["reduced"]


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
