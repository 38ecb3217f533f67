"""`restore --region` brings back one lost host of several into the database of the others."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.backup import restoring
from controlplane.backup.manifest import BranchCopy
from controlplane.backup.restored_rows import settle_lost_host
from controlplane.models import (
    CATALOG_UNREAD,
    Account,
    Database,
    Endpoint,
    Event,
    Host,
    LogReceiver,
)
from controlplane.models.host import AWAY_AFTER
from tests.controlplane.deployment.test_metadata_copy import new_database, ran
from tests.controlplane.history.test_history_store import copied_after
from tests.controlplane.rows import make_host, make_project, make_snapshot
from tests.support.bare_postgres import BarePostgres
from tests.support.place import Place
from tests.support.service import Service
from tests.support.waiting import wait_for

KEY = "the secret key of all hosts"


@pytest.fixture
def url(bare_cluster: BarePostgres) -> str:
    return new_database(bare_cluster, "hosts")


@pytest.fixture
def hosts(url: str, state_dir: Path) -> Iterator[tuple[Service, Service]]:
    """Two hosts that share a database, each with a region: `local`, and `second`."""
    running = []
    (state_dir / "store").mkdir()
    try:
        for name in ("local", "second"):
            place = state_dir / name
            place.mkdir(mode=0o711)
            running.append(Service(place, DATABASE_URL=url, **environment(state_dir, name)))
        first, second = running
        yield first, second
    finally:
        for service in running:
            service.down()


def environment(state_dir: Path, region: str) -> dict[str, str]:
    """The variables of a host."""
    return {
        "PERCH_REGION": region,
        "PERCH_SECRET_KEY": KEY,
        "PERCH_HISTORY_STORE": f"file://{state_dir}/store",
    }


def lose(service: Service, region: str) -> None:
    """Lose the host, as long ago as its region counts as away."""
    service.kill_everything()
    with service.stack.database() as database:
        database.execute(
            "UPDATE controlplane_host SET worker_seen_at = worker_seen_at - interval '1 minute',"
            " proxy_seen_at = proxy_seen_at - interval '1 minute' WHERE id = %s",
            [region],
        )
    service.down()
    shutil.rmtree(service.state_dir)


def keep(place: Place, text: str) -> None:
    with place.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (text text)")
        connection.execute("INSERT INTO kept VALUES (%s)", [text])


def kept(place: Place, **parameters: Any) -> Any:
    return place.query("SELECT string_agg(text, ' ') FROM kept", **parameters)


@pytest.mark.thorough
def test_a_lost_host_comes_back_beside_the_others(
    hosts: tuple[Service, Service], url: str, state_dir: Path
) -> None:
    first, second = hosts
    other = Place.create(first.stack, first.client, region_id="local")
    place = Place.create(second.stack, second.client, region_id="second")
    keep(other, "other")
    keep(place, "before")
    gone = place.new_branch_id(name="gone")
    backup, new = state_dir / "backup", state_dir / "new"
    here = environment(state_dir, "second")
    ran("backup", backup, "--state-dir", second.state_dir, url=url, status=0, **here)
    keep(place, "after")
    keep(other, "after")
    password = place.new_role("later")
    younger = place.new_branch_id(name="younger")
    place.done(place.client.delete(place.branch_path(gone)))

    again = ("restore", backup, "--region", "second", "--state-dir", new)
    assert "still runs its worker" in ran(*again, url=url, status=1, PERCH_SECRET_KEY=KEY)
    lose(second, "second")
    said = ran(*again, url=url, status=1, PERCH_SECRET_KEY="another")
    assert "PERCH_SECRET_KEY is not the key" in said
    assert not new.exists()
    said = ran(*again, url=url, status=2, PERCH_SECRET_KEY=KEY)
    assert f"The branch {younger} has no data" in said
    assert {path.name for path in (new / "branches").iterdir()} == {place.branch_id}

    returned = Service(new, DATABASE_URL=url, **here)
    try:
        place.stack, place.client.api_url = returned.stack, returned.stack.api_url
        assert kept(place) == ("before",)
        assert place.is_served(user="later", password=password)
        assert kept(other) == ("other after",)
        assert place.client.call("GET", place.branch_path(gone)).status_code == 404
        assert Place.create(returned.stack, place.client, region_id="second").is_served()
        said = ran("backup", state_dir / "next", "--state-dir", new, url=url, status=2, **here)
        assert younger in said
    finally:
        returned.down()


@pytest.mark.thorough
def test_a_lost_host_comes_back_from_the_store_beside_the_others(
    hosts: tuple[Service, Service], url: str, state_dir: Path
) -> None:
    first, second = hosts
    other = Place.create(first.stack, first.client, region_id="local")
    place = Place.create(second.stack, second.client, region_id="second")
    keep(other, "other")
    keep(place, "copied")
    password = place.new_role("reader")
    since = datetime.now(UTC)
    wait_for(lambda: copied_after(place, since), "a copy of the log", timeout=90)
    lose(second, "second")
    here, new = environment(state_dir, "second"), state_dir / "new"
    ran(
        *("restore", "--from-store", "--region", "second", "--state-dir", new),
        url=url,
        status=0,
        **here,
    )
    returned = Service(new, DATABASE_URL=url, **here)
    try:
        place.stack, place.client.api_url = returned.stack, returned.stack.api_url
        assert kept(place) == ("copied",)
        assert place.is_served(user="reader", password=password)
        assert kept(other) == ("other",)
    finally:
        returned.down()


class TestRows:
    def test_only_the_hosts_rows_change(self, account: Account, host: Host) -> None:
        far = make_host("far", state_id="far")
        lost, other = make_project(account, host), make_project(account, far)
        Endpoint.objects.update(current_state="active", started_at=timezone.now())
        Host.objects.update(computes_seen_at=timezone.now())
        newest = list(Event.objects.values_list("id", "transaction"))
        settle_lost_host([lost.branches.get().id], {})
        states = dict(Endpoint.objects.values_list("project_id", "current_state"))
        assert states == {lost.id: "idle", other.id: "active"}
        far.refresh_from_db()
        host.refresh_from_db()
        assert far.state_id == "far"
        assert host.state_id
        assert newest == list(Event.objects.values_list("id", "transaction"))[: len(newest)]

    def test_a_branch_that_was_replaced_since_keeps_the_databases_of_its_data(
        self, account: Account, host: Host
    ) -> None:
        """Its rows are new ones, so by their ids none of the data's databases would be known."""
        branch = make_project(account, host).branches.get()
        now = timezone.now()
        database = Database.objects.create(
            branch=branch, name="shop", owner_name="owner", applied_name="shop"
        )
        copy = BranchCopy(now, False, 0, {str(database.id + 1): "shop"}, [])
        branch.last_reset_at = now + timedelta(seconds=1)
        branch.save()
        settle_lost_host([branch.id], {branch.id: copy})
        branch.refresh_from_db()
        assert branch.catalog_mark == CATALOG_UNREAD
        assert list(Database.objects.values_list("name", "deleted_at")) == [("shop", None)]

    def test_branches_without_a_copy_are_named_and_stay_ready(
        self, account: Account, host: Host
    ) -> None:
        project = make_project(account, host)
        snapshot = make_snapshot(project)
        branch = project.branches.get(hidden=False)
        assert set(settle_lost_host([], {})) == {branch.id, snapshot.data_branch_id}
        branch.refresh_from_db()
        assert branch.current_state == "ready"
        assert not project.snapshots.exists()


def test_what_other_hosts_have_received_is_named_before_the_restore(
    account: Account, host: Host, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HOST_NAME = "lost"
    monkeypatch.setenv("DATABASE_URL", "postgres://")
    monkeypatch.setattr(restoring, "_check_answers", lambda: None)
    silent = timezone.now() - AWAY_AFTER - timedelta(seconds=1)
    lost = make_host("lost", host.region_id, worker_seen_at=silent, proxy_seen_at=silent)
    received, other = (make_project(account, lost).branches.get() for _ in range(2))
    LogReceiver.objects.create(branch=other, host=host)
    said: list[str] = []
    restoring.check_lost_host(said.append)
    assert said == []
    LogReceiver.objects.create(branch=received, host=host, attached_at=timezone.now())
    restoring.check_lost_host(said.append)
    (warning,) = said
    assert received.id in warning
    assert other.id not in warning
    assert warning.endswith("hosts lost lost")
