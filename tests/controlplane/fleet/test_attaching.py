"""Attaching one branch holds up no other, and a loss is noted before commits go on."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.compute import compute
from controlplane.fleet.receivers import log_receivers, lost_receivers, standby
from controlplane.fleet.receivers.log_receivers import StoredLog
from controlplane.fleet.receivers.standby import NotAttached
from controlplane.models import Account, Endpoint, Event, Host, LogReceiver
from tests.controlplane.rows import make_project


@pytest.fixture
def endpoint(account: Account, host: Host) -> Endpoint:
    return make_project(account, host).branches.get().endpoints.get()


@pytest.fixture
def unattached(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What an attempt to attach does, without a compute. Returns what it has called."""
    called: list[Any] = []
    monkeypatch.setattr(log_receivers, "second_hosts", lambda project: [])
    monkeypatch.setattr(log_receivers, "_begin_to_hold_log", lambda branch, sockets: 0)
    monkeypatch.setattr(log_receivers, "ATTACH_TIMEOUT", 0.05)
    monkeypatch.setattr(standby, "walsender_descriptor", lambda *_: None)
    monkeypatch.setattr(standby, "receiver_named", lambda branch_id: None)
    monkeypatch.setattr(standby, "name_standby", lambda *_, **__: called.append("taken out"))
    return called


def test_attempts_to_attach_share_one_copy_and_hold_up_no_note(
    endpoint: Endpoint, unattached: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, copies = threading.Event(), []

    def copy(branch: Any) -> None:
        copies.append(branch.id)
        ended.wait(20)

    monkeypatch.setattr(log_receivers, "copy_to_store", copy)
    try:
        for _ in range(10):
            with suppress(NotAttached):
                log_receivers._attach(endpoint, serves=False)
        assert copies == [endpoint.branch_id]
        assert lost_receivers.threads.submit(lambda: "taken out").result(1) == "taken out"
    finally:
        ended.set()


def test_long_copies_of_one_account_keep_no_other_from_copying(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, stored = threading.Event(), StoredLog(1, is_all=True)
    large = make_project(account, host, size=10)
    another = make_project(Account.objects.create(name="another", plan="free"), host)
    monkeypatch.setattr(log_receivers, "ATTACH_TIMEOUT", 0.1)

    def copy(branch: Any) -> StoredLog:
        if branch.project_id == large.id:
            ended.wait(20)
        return stored

    monkeypatch.setattr(log_receivers, "copy_to_store", copy)
    try:
        for branch in large.branches.all():
            with pytest.raises(NotAttached):
                log_receivers._copied(branch)
        monkeypatch.setattr(log_receivers, "ATTACH_TIMEOUT", 5)
        assert log_receivers._copied(another.branches.get()) == stored
    finally:
        ended.set()
    assert log_receivers._copied(large.branches.all()[9]) == stored


def test_a_loss_is_noted_before_clients_commit_without_the_former_receiver(
    endpoint: Endpoint, host: Host, unattached: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = LogReceiver.objects.create(branch=endpoint.branch, host=host, attached_at=timezone.now())
    monkeypatch.setattr(
        standby,
        "name_standby",
        lambda *_, **__: unattached.append(LogReceiver.objects.get(id=row.id).lost_at),
    )
    with suppress(NotAttached):
        log_receivers._attach(endpoint, serves=True)
    assert unattached[0] is not None


def test_commits_wait_for_nobody_once_the_history_has_ended(
    endpoint: Endpoint,
    host: Host,
    unattached: list[Any],
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store would get nothing more, so the second host could remove nothing."""
    settings.STATE_DIR = tmp_path
    (tmp_path / "locks").mkdir()
    Endpoint.objects.filter(id=endpoint.id).update(current_state="active")
    endpoint.project.settings["durability"] = "region"
    endpoint.project.save()
    LogReceiver.objects.create(branch=endpoint.branch, host=host, attached_at=timezone.now())
    attached = {endpoint.branch_id: True}
    monkeypatch.setattr(log_receivers, "look_at_each", lambda due, look, at: map(look, ids(due)))
    monkeypatch.setattr(log_receivers, "is_attached", lambda branch_id, _: attached[branch_id])
    monkeypatch.setattr(log_receivers, "replace", attached.__setitem__)
    monkeypatch.setattr(compute, "running_endpoint", lambda _: endpoint.id)
    log_receivers.hold_durability(host)
    assert unattached[0] == "taken out"
    assert not attached[endpoint.branch_id]
    said = Event.objects.get(type="durability.reduced").summary
    assert said.endswith("its history has ended")


def ids(endpoints: list[Endpoint]) -> list[str]:
    return [one.id for one in endpoints]
