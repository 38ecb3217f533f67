"""`backup` and `restore`: the copy is consistent, whatever happens while it is made."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.backup import branch_copy
from controlplane.backup.branch_copy import DataInUse, copy_branch, idle_data
from controlplane.backup.manifest import BranchCopy, Manifest, read_manifest, verify
from controlplane.backup.restored_rows import settle_rows
from controlplane.backup.taking import BackupRefused, take_backup
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.patience import report_progress
from controlplane.compute.processes.occupants import lease
from controlplane.models import Account, Action, Branch, Host, Operation, Snapshot, Span, Usage
from controlplane.models import Project as ProjectRow
from tests.controlplane.rows import make_project, make_snapshot
from tests.support.client import Client
from tests.support.commands import begun, output_of, ran
from tests.support.numbers import Numbers
from tests.support.past import history, notes, with_history, write
from tests.support.place import Place
from tests.support.project import Project, locked
from tests.support.service import Service

pytestmark = pytest.mark.slow


def await_line(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without {words!r}")


class Shop:
    """Two accounts with a branch in every state, and data in each."""

    late_password: str

    def __init__(self, service: Service) -> None:
        stack = service.stack
        self.alice, self.bob = service.client, stack.client()
        self.active = Place.create(stack, self.alice, name="active")
        for name in ("early", "before"):
            self.new_database(name, owner=self.active.role)
        keep(self.active, 5, dbname="before")
        self.early_password = self.active.new_role("early")
        self.doomed = self.active.new_branch_id(name="doomed")
        self.asleep = Place.create(stack, self.bob, name="asleep")
        keep(self.asleep, 7)
        with_history(self.asleep)
        self.asleep.suspend()
        self.disabled = Place.create(stack, self.bob, name="disabled")
        keep(self.disabled, 9)
        self.disabled.change(disabled=True)
        self.numbers = Place.create(stack, self.alice, name="numbers")

    def new_database(self, name: str, *, owner: str) -> None:
        wanted = {"database": {"name": name, "owner_name": owner}}
        place = self.active
        place.done(place.client.post(place.branch_path(rest="/databases"), wanted))

    def change(self) -> None:
        """Change what the rows describe. The rows are copied last; the data was copied before
        this."""
        place = self.active
        self.late_password = place.new_role("late")
        self.new_database("late", owner="late")
        renamed = {"database": {"name": "after"}}
        place.done(place.client.patch(place.of_catalog("databases", "before"), renamed))
        for gone in (
            place.of_catalog("databases", "early"),
            place.of_catalog("roles", "early"),
            place.branch_path(self.doomed),
        ):
            place.done(place.client.delete(gone))


def keep(place: Place, number: int, **parameters: Any) -> None:
    with place.connect(**parameters) as connection:
        connection.execute(f"CREATE TABLE kept AS SELECT {number} AS number".encode())


@pytest.fixture
def service(state_dir: Path) -> Iterator[Service]:
    place = state_dir / "service"
    place.mkdir()
    place.chmod(0o711)
    running = Service(place)
    yield running
    running.down()


@pytest.mark.thorough
def test_a_restored_service_has_all_acknowledged_changes(service: Service, state_dir: Path) -> None:
    shop = Shop(service)
    writer = Numbers(shop.numbers)
    target, new = state_dir / "backup", state_dir / "new"
    at = ("--state-dir", service.state_dir)
    with writer.writing():
        with locked(service.stack, shop.disabled.branch_id):
            half = begun("backup", target, *at)
            await_line(half, shop.asleep.branch_id)
            assert "another backup" in ran("backup", state_dir / "other", *at, status=1)
            half.kill()
            half.communicate()
        partial = state_dir / ".backup.partial"
        assert partial.exists()
        assert not target.exists()
        assert "an incomplete one" in ran("restore", partial, "--state-dir", new, status=1)

        with locked(service.stack, "accounts"):  # no creation of a branch ends meanwhile
            coming = service.client.new_project(wait=False)
            with locked(service.stack, shop.disabled.branch_id):
                whole = begun("backup", target, *at)
                await_line(whole, shop.asleep.branch_id)
                shop.change()
            said = output_of(whole)
    assert "keep it as secret as the service" in said
    assert not partial.exists()
    assert stat.filemode(target.stat().st_mode) == "drwx------"
    service.down()
    see_damage(target)
    assert "is the service as of" in ran("restore", target, "--state-dir", new)
    see_all(new, shop, writer, coming, read_manifest(target))


def see_damage(backup: Path) -> None:
    """One changed byte is detected, and so is one file more or less."""
    assert verify(backup) == []
    victim = next(backup.glob("branches/*/global/pg_control"))
    sound = victim.read_bytes()
    stranger = victim.with_name("stranger")
    stranger.touch()
    victim.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    (backup / "api-key").rename(backup.parent / "api-key")
    assert verify(backup) == [
        "api-key is missing",
        f"{stranger.relative_to(backup)} is not part of the backup",
        f"{victim.relative_to(backup)} has changed since it was written",
    ]
    unwanted = backup.parent / "unwanted"
    said = ran("restore", backup, "--state-dir", unwanted, status=1)
    assert f"{victim.relative_to(backup)} has changed since it was written" in said
    victim.write_bytes(sound)
    stranger.unlink()
    (backup.parent / "api-key").rename(backup / "api-key")


def see_all(state_dir: Path, shop: Shop, writer: Numbers, coming: Any, manifest: Manifest) -> None:
    restored = Service(state_dir)
    try:
        alice = Client(restored.stack.api_url, shop.alice.key)
        bob = Client(restored.stack.api_url, shop.bob.key)
        restored.client = alice
        restored.settle()
        assert {operation["status"] for operation in restored.operations()} == {"finished"}
        found = {path.name for path in (state_dir / "branches").iterdir()}
        assert found == {*manifest.branches, coming["branch"]["id"]}
        assert shop.doomed not in found
        accounts = [path.stat().st_gid for path in (state_dir / "branches").iterdir()]
        assert os.geteuid() != 0 or len(set(accounts)) == len(accounts)

        numbers = Place(restored.stack, alice, writer.place.created)
        assert numbers.state() == "idle"
        began = manifest.branches[numbers.branch_id].taken_at
        acknowledged = sum(done < began for done in writer.done_at)
        count, last = numbers.query("SELECT count(*), max(number) FROM numbers")
        assert count == last >= acknowledged > 10
        see_catalog(Place(restored.stack, alice, shop.active.created), shop)

        asleep = Place(restored.stack, bob, shop.asleep.created)
        assert asleep.query("SELECT number FROM kept") == (7,)
        see_history(asleep, manifest)
        disabled = Place(restored.stack, bob, shop.disabled.created)
        assert "disabled" in str(disabled.refusal())
        disabled.change(disabled=False)
        assert disabled.query("SELECT number FROM kept") == (9,)
        for place in (numbers, Place(restored.stack, alice, coming)):
            assert place.query("SELECT lower('Ä')") == ("ä",)
        assert Place.create(restored.stack, alice).is_served()
    finally:
        restored.down()
    again = ran("backup", state_dir.parent / "again", "--state-dir", state_dir)
    # The last place, and the branch of a past moment.
    assert f"holds {len(found) + 2} branches" in again, "a service that is stopped"


def see_history(place: Place, manifest: Manifest) -> None:
    """The history begins anew: nothing claims a moment that the backup does not have."""
    with_history(place)
    assert datetime.fromisoformat(history(place)["earliest"]) > manifest.rows_at
    before = {"branch": {"parent_timestamp": manifest.rows_at.isoformat()}}
    refused = place.client.call("POST", place.path + "/branches", json=before)
    assert (refused.status_code, refused.json()["code"]) == (422, "OUTSIDE_HISTORY")
    at, _ = write(place, "first")
    write(place, "second")
    made = place.new_branch(parent_timestamp=at)["branch"]
    assert notes(place, made["id"]) == ["first"]


def see_catalog(place: Place, shop: Shop) -> None:
    """The catalog is as in the rows, although the data was copied before the change."""
    assert place.query("SELECT number FROM kept", dbname="after") == (5,)
    assert place.is_served(user="late", password=shop.late_password, dbname="late")
    assert place.refusal(user="early", password=shop.early_password)
    names = "SELECT datname FROM pg_database WHERE datname IN ('early', 'before')"
    assert place.sql(names) == []
    assert place.sql("SELECT rolname FROM pg_roles WHERE rolname = 'early'") == []


class TestACopyOfAnIdleBranch:
    """No operation waits for it, except for the last attempt."""

    @pytest.fixture
    def branch(self, account: Account, host: Host, settings: Any, tmp_path: Path) -> Branch:
        settings.STATE_DIR = tmp_path
        branch = make_project(account, host).branches.get()
        data = tmp_path / "branches" / branch.id / "data"
        (data / "global").mkdir(parents=True)
        (data / "global" / "pg_control").write_text("18\n")
        (tmp_path / "locks").mkdir()
        return branch

    def copied_while(
        self, branch: Branch, act: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[BranchCopy, int]:
        """Copy the branch and call `act` during each attempt, with its number. Returns the copy,
        and how many attempts it took."""
        attempts = 0

        def clone(data: Path, target: Path, **parameters: Any) -> None:
            nonlocal attempts
            attempts += 1
            act(attempts)
            clone_tree(data, target, **parameters)

        monkeypatch.setattr(branch_copy, "sleep", lambda seconds: None)
        monkeypatch.setattr(branch_copy, "clone_tree", clone)
        target, copy = branch_dir(branch.id).parent.parent / "copy", None
        while copy is None:
            copy = copy_branch(branch.id, target, attempts + 1)
        return copy, attempts

    def test_the_copy_begins_anew_after_a_compute_started_and_stopped(
        self, branch: Branch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start_and_stop(attempt: int) -> None:
            if attempt == 1:
                with lock_branches(branch.id, timeout=0):  # as an operation does
                    (data_dir(branch.id) / "global" / "pg_control").write_text("later\n")

        copy, attempts = self.copied_while(branch, start_and_stop, monkeypatch)
        assert (copy.was_running, copy.size, attempts) == (False, 6, 2)

    def test_the_copy_begins_anew_after_other_data_took_the_place(
        self, branch: Branch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def replace(attempt: int) -> None:
            if attempt == 1:
                data = data_dir(branch.id)
                data.rename(data.with_name("old"))
                clone_tree(data.with_name("old"), data, owner=own_account())

        assert self.copied_while(branch, replace, monkeypatch)[1] == 2

    def test_an_operation_that_works_repeatedly_waits_in_the_end(
        self, branch: Branch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def work(attempt: int) -> None:
            with suppress(LockTimeout), lock_branches(branch.id, timeout=0):
                (data_dir(branch.id) / "global" / "pg_control").write_text(str(attempt))

        copy, attempts = self.copied_while(branch, work, monkeypatch)
        assert (copy.size, attempts) == (1, branch_copy.MAX_ATTEMPTS)

    def test_what_a_process_works_on_is_not_idle(self, branch: Branch) -> None:
        """Such as a Postgres of ours, which no endpoint leads to."""
        with lease(branch.id), pytest.raises(DataInUse), idle_data(branch.id):
            pass
        with pytest.raises(DataInUse), idle_data(branch.id), lease(branch.id):
            report_progress()


def test_a_restore_adapts_the_rows_to_the_copied_branches(account: Account, host: Host) -> None:
    """Branches and projects without a copy are deleted or failed, and no endpoint is active."""
    copied, younger, failed, mixed = (make_project(account, host) for _ in range(4))
    begun_at = timezone.now() - timedelta(hours=5)
    rows_at = begun_at + timedelta(seconds=60)
    endpoint = copied.endpoints.get()
    copied.endpoints.update(current_state="active", started_at=begun_at)
    first = mixed.branches.get()
    mixed.branches.update(default=False)
    Branch.objects.create(
        project=mixed, name="new", parent=first, current_state="ready", default=True
    )
    kept = [copied.branches.get(), first]
    settle_rows(manifest_of([row.id for row in kept], {failed.branches.get().id: "why"}, rows_at))

    endpoint.refresh_from_db()
    assert endpoint.current_state == "idle"
    assert Usage.objects.get(span=Span.MONTH).active_seconds == pytest.approx(60)
    younger.refresh_from_db()
    assert younger.deleted_at is not None
    assert not younger.endpoints.filter(deleted_at=None).exists()
    assert failed.branches.get().current_state == "init"
    assert list(mixed.branches.filter(deleted_at=None, default=True)) == [first]


def test_a_project_without_a_copy_is_not_recoverable(account: Account, host: Host) -> None:
    deleted = make_project(account, host)
    now = timezone.now()
    ProjectRow.objects.update(deleted_at=now, recoverable_until=now + timedelta(hours=1))
    settle_rows(manifest_of([], {}, now))
    deleted.refresh_from_db()
    assert deleted.recoverable_until is None


def test_a_snapshot_without_a_copy_is_deleted(account: Account, host: Host) -> None:
    project = make_project(account, host)
    (branch,) = project.branches.all()
    make_snapshot(project)
    settle_rows(manifest_of([branch.id], {}, timezone.now()))
    assert not Snapshot.objects.exists()


def test_a_branch_that_is_being_deleted_needs_no_copy(account: Account, host: Host) -> None:
    project = make_project(account, host)
    branch = project.branches.get()
    Operation.objects.update(action=Action.DELETE_TIMELINE, status="running", branch=branch)
    settle_rows(manifest_of([], {}, timezone.now()))
    branch.refresh_from_db()
    assert branch.deleted_at is None


def manifest_of(copied: list[str], not_copied: dict[str, str], rows_at: datetime) -> Manifest:
    copies = {name: BranchCopy(rows_at, False, 0, {}, []) for name in copied}
    return Manifest("1", "18", "local", rows_at, rows_at, [], copies, not_copied)


@pytest.mark.parametrize("place", ["a file", "full", "link", "nowhere/backup", "state/backup"])
def test_a_backup_overwrites_nothing(place: str, tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path / "state"
    (tmp_path / "state").mkdir()
    (tmp_path / "a file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BackupRefused):
        take_backup(tmp_path / place, print)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.thorough
def test_a_branch_that_is_restored_meanwhile_is_copied_again(
    service: Service, state_dir: Path
) -> None:
    """The rows are copied last, and describe what the first copy of the branch does not contain."""
    project = service.project()
    project.sql("CREATE TABLE version AS SELECT 1 AS number")
    child = project.new_branch(endpoint=True)
    child_id, endpoint_id = child["branch"]["id"], child["endpoints"][0]["id"]
    body = {"database": {"name": "of_old", "owner_name": "neondb_owner"}}
    project.done(project.client.post(project.branch_path(child_id, "/databases"), body))
    project.sql("UPDATE version SET number = 2", endpoint_id=endpoint_id)
    project.sql("UPDATE version SET number = 3")
    target, new = state_dir / "backup", state_dir / "new"
    with locked(service.stack, project.new_branch_id()):
        backup = begun("backup", target, "--state-dir", service.state_dir)
        await_line(backup, child_id)
        wanted = {"source_branch_id": project.branch_id, "preserve_under_name": "old"}
        path = project.branch_path(child_id, "/restore")
        project.done(project.client.post(path, wanted))
    output_of(backup)
    service.down()
    ran("restore", target, "--state-dir", new)
    again = Service(new)
    try:
        client = Client(again.stack.api_url, service.client.key)
        found = Project(again.stack, client, project.created)
        branches = client.get(found.path + "/branches")["branches"]
        (old,) = [row["id"] for row in branches if row["name"] == "old"]
        found.start(endpoint_id)
        assert found.sql("SELECT number FROM version", endpoint_id=endpoint_id) == [(3,)]
        of_old = found.create_endpoint(old)["endpoint"]["id"]
        assert found.sql("SELECT number FROM version", endpoint_id=of_old) == [(2,)]
        query = "SELECT count(*) FROM pg_database WHERE datname = 'of_old'"
        assert found.sql(query, endpoint_id=of_old) == [(1,)]
        assert found.sql(query, endpoint_id=endpoint_id) == [(0,)]
    finally:
        again.down()
