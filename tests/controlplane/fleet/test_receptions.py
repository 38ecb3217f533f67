"""What a second host receives is bounded, and makes room before history does."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.compute.host.space import Space
from controlplane.fleet.receivers import receivewal, receptions
from controlplane.models import Account, Event, Host, LogReceiver, Operation, Project
from controlplane.operations import disk
from controlplane.operations.rounds.deleted_projects import make_room
from tests.controlplane.rows import make_host, make_project

MB = 1 << 20
ROOMY = Space(total=100 << 30, free=50 << 30, reserve=10 << 30, free_files=0, reserved_files=0)
SHORT = replace(ROOMY, free=ROOMY.reserve - 3 * MB)
SILENT, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def received(
    account: Account, host: Host, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, LogReceiver]:
    """Three receptions on this host of log of the host "other", by their sizes: 1, 2, 4 MB."""
    settings.STATE_DIR = settings.SOCKET_DIR = tmp_path
    (tmp_path / "locks").mkdir()
    Host.objects.filter(id=host.id).update(proxy_seen_at=timezone.now())
    other = make_host("other", host.region_id, proxy_seen_at=timezone.now())
    monkeypatch.setattr(receptions, "host_space", lambda: ROOMY)
    made = {}
    for size in (1, 2, 4):
        branch = make_project(account, other).branches.get()
        row = LogReceiver.objects.create(branch=branch, host=host, attached_at=timezone.now())
        receivewal.log_of(row.id).mkdir(parents=True)
        (receivewal.log_of(row.id) / f"{size:024X}").write_bytes(b"x" * size * MB)
        made[f"{size} MB"] = row
    return made


def left(received: dict[str, LogReceiver]) -> list[str]:
    return [size for size, row in received.items() if receivewal.log_of(row.id).exists()]


def noted() -> list[str]:
    return [event.summary for event in Event.objects.filter(type="durability.reduced")]


def test_one_that_exceeds_its_bound_is_removed_and_its_loss_noted(
    received: dict[str, LogReceiver], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receptions, "MAX_RECEIVED_BYTES", 3 * MB)
    receptions.look_after_received(host)
    assert left(received) == ["1 MB", "2 MB"]
    lost = LogReceiver.objects.get(id=received["4 MB"].id)
    assert lost.lost_at is not None
    (said,) = noted()
    assert "of log that the store does not have" in said


def test_log_that_the_store_has_does_not_count(
    received: dict[str, LogReceiver], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receptions, "MAX_RECEIVED_BYTES", 3 * MB)
    LogReceiver.objects.filter(id=received["4 MB"].id).update(stored_lsn=1 << 40)
    receptions.look_after_received(host)
    assert left(received) == ["1 MB", "2 MB", "4 MB"]
    assert not noted()


def test_on_a_full_disk_only_the_largest_is_removed(
    received: dict[str, LogReceiver], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receptions, "host_space", lambda: SHORT)
    receptions.look_after_received(host)
    assert left(received) == ["1 MB", "2 MB"]
    assert LogReceiver.objects.filter(lost_at=None).count() == 2
    (said,) = noted()
    assert said.endswith("the second host's disk is nearly full")


def restore_each(received: dict[str, LogReceiver], status: str) -> None:
    for row in received.values():
        Operation.objects.create(
            project=row.branch.project,
            branch=row.branch,
            action="restore_from_store",
            status=status,
            chain="0" * 32,
            resources=[],
        )


@pytest.fixture
def too_large(received: dict[str, LogReceiver], monkeypatch: pytest.MonkeyPatch) -> None:
    """All receptions take too much, on a disk that is short."""
    monkeypatch.setattr(receptions, "host_space", lambda: SHORT)
    monkeypatch.setattr(receptions, "MAX_RECEIVED_BYTES", MB // 2)


@pytest.mark.usefixtures("too_large")
@pytest.mark.parametrize("restore", [None, "running", "failed", "cancelled"])
def test_what_a_restore_may_need_stays(
    received: dict[str, LogReceiver], host: Host, restore: str | None
) -> None:
    """A restore that has failed can be retried."""
    if restore:
        restore_each(received, restore)
    else:
        silent = timezone.now() - SILENT
        Host.objects.filter(id="other").update(worker_seen_at=silent, proxy_seen_at=silent)
    receptions.look_after_received(host)
    assert left(received) == ["1 MB", "2 MB", "4 MB"]
    assert not receivewal.removable
    assert not noted()


@pytest.mark.usefixtures("too_large")
@pytest.mark.parametrize("since", ["a retry has finished", "the branch ran"])
def test_what_no_restore_needs_any_more_is_removed(
    received: dict[str, LogReceiver], host: Host, since: str
) -> None:
    """The branch runs again also after other data has taken the place of the lost."""
    restore_each(received, "failed")
    if since == "the branch ran":
        LogReceiver.objects.update(created_at=timezone.now())
    else:
        restore_each(received, "finished")
    receptions.look_after_received(host)
    assert not left(received)


@pytest.mark.parametrize(("more", "is_removed"), [(0, False), (5 * MB, True)])
def test_nothing_else_is_removed_for_what_is_received(
    received: dict[str, LogReceiver],
    account: Account,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    more: int,
    is_removed: bool,
) -> None:
    now = timezone.now()
    deleted = make_project(account, host)
    kept = Project.objects.filter(id=deleted.id, recoverable_until__isnull=False)
    Project.objects.filter(id=deleted.id).update(deleted_at=now, recoverable_until=now + DAY)
    receptions.look_after_received(host)
    monkeypatch.setattr(disk, "host_space", lambda: replace(SHORT, free=SHORT.free - more))
    assert disk.must_make_room() is is_removed
    make_room(host)
    assert kept.exists() is not is_removed
