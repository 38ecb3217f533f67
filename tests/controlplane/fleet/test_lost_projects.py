"""What `manage.py hosts lost` does to the rows, and what it refuses."""

import io
import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.fleet.lost_hosts import continue_with_lost
from controlplane.history.store import lost_branches
from controlplane.models import (
    CATALOG_UNREAD,
    Account,
    Action,
    Branch,
    Endpoint,
    Event,
    HistoryChain,
    Host,
    Lane,
    LogReceiver,
    Operation,
    Project,
)
from controlplane.models.host import AWAY_AFTER
from controlplane.operations.details import RestoreFromStoreDetails
from controlplane.operations.own_host import HostTaken, own_host
from controlplane.services.hosts import find_host
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_host, make_project

STORE = {"behind_branches": 0}
GB = 1 << 30


def declare_lost() -> str:
    out = io.StringIO()
    call_command("hosts", "lost", "lost", "--yes", stdout=out)
    return out.getvalue()


def give_history(project: Project, **fields: Any) -> None:
    """Let the store have every branch of the project."""
    now = timezone.now()
    for branch in project.branches.all():
        HistoryChain.objects.create(
            branch=branch,
            number=1,
            first_at=now,
            first_lsn=1,
            last_at=now,
            last_lsn=2,
            updated_at=now,
            stored_at=now,
            **fields,
        )


@pytest.fixture
def lost(host: Host) -> Host:
    """A silent host, beside another one of its region that has a store."""
    Host.objects.filter(id=host.id).update(
        history_store=STORE, proxy_seen_at=timezone.now(), worker_seen_at=timezone.now()
    )
    silent = timezone.now() - AWAY_AFTER - timedelta(seconds=1)
    return make_host(
        "lost",
        host.region_id,
        state_id="of-lost",
        state_place="there",
        worker_seen_at=silent,
        proxy_seen_at=silent,
        history_store=STORE,
    )


def untouched(project: Project) -> bool:
    project.refresh_from_db()
    found = Host.objects.get(id="lost")
    return (project.host_id, found.state_id, found.lost_at) == ("lost", "of-lost", None)


def refused(project: Project, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        declare_lost()
    assert untouched(project)
    assert not Event.objects.filter(type="project.host_lost").exists()


class TestRefusals:
    @pytest.fixture
    def project(self, account: Account, lost: Host) -> Project:
        made = make_project(account, lost)
        give_history(made)
        return made

    @pytest.mark.parametrize("process", ["worker", "proxy"])
    def test_a_host_that_is_alive(self, project: Project, process: str) -> None:
        Host.objects.filter(id="lost").update(**{f"{process}_seen_at": timezone.now()})
        refused(project, f"the {process} of lost still runs: the host is not lost")

    def test_a_region_with_no_other_host(self, project: Project) -> None:
        Host.objects.filter(id="local").update(worker_seen_at=timezone.now() - AWAY_AFTER)
        refused(project, 'the region "local" has no other host that runs')

    def test_a_host_that_drains_takes_nothing(self, project: Project) -> None:
        Host.objects.filter(id="local").update(draining=True)
        refused(project, 'the region "local" has no other host that runs')

    def test_no_store(self, project: Project) -> None:
        Host.objects.filter(id="lost").update(history_store={})
        refused(project, "lost has copied nothing to a store")

    def test_no_store_on_the_other_hosts(self, project: Project) -> None:
        Host.objects.filter(id="local").update(history_store={})
        refused(project, r"the workers of the other hosts \(local\) have no PERCH_HISTORY_STORE")

    def test_nothing_in_the_store(self, project: Project) -> None:
        HistoryChain.objects.update(stored_at=None)
        refused(project, "no project of lost has a copy in the store")

    def test_without_a_confirmation(self, project: Project, monkeypatch: Any) -> None:
        monkeypatch.setattr("builtins.input", lambda prompt: "local")
        with pytest.raises(CommandError, match='"local" is not the name of the host'):
            call_command("hosts", "lost", "lost", stdout=io.StringIO())
        assert untouched(project)


class TestTakingOver:
    def test_projects_live_on_the_other_host_and_their_branches_are_to_be_restored(
        self, account: Account, lost: Host
    ) -> None:
        project = make_project(account, lost, size=2)
        give_history(project)
        Endpoint.objects.update(current_state="active", started_at=timezone.now())
        assert "Other hosts restore 1 projects." in declare_lost()
        project.refresh_from_db()
        assert project.host_id == "local"
        assert set(Endpoint.objects.values_list("current_state", flat=True)) == {"idle"}
        assert not HistoryChain.objects.exists()
        for branch in project.branches.all():
            assert branch.copied_by == ["of-lost"]
            assert branch.catalog_mark == CATALOG_UNREAD
            operation = Operation.objects.get(branch=branch, action=Action.RESTORE_FROM_STORE)
            assert operation.lane == Lane.UPKEEP
            assert operation.status == "running"
        assert Event.objects.filter(type="project.host_lost", project_id=project.id).count() == 1

    def test_those_first_that_were_used_last(self, account: Account, lost: Host) -> None:
        now = timezone.now()
        order = []
        for minutes in (30, 5, 90):
            project = make_project(account, lost)
            give_history(project)
            used_at = now - timedelta(minutes=minutes)
            Endpoint.objects.filter(project=project).update(last_active=used_at)
            order.append((used_at, project.id))
        declare_lost()
        restores = Operation.objects.filter(action=Action.RESTORE_FROM_STORE)
        found = list(restores.order_by("created_at").values_list("project_id", flat=True))
        assert found == [project_id for _, project_id in sorted(order, reverse=True)]

    def test_a_client_makes_its_branch_the_first(self, account: Account, lost: Host) -> None:
        project = make_project(account, lost)
        give_history(project)
        declare_lost()
        start_for_client(Endpoint.objects.get(project=project).id)
        restore = Operation.objects.get(action=Action.RESTORE_FROM_STORE)
        assert restore.lane == Lane.WAKES

    def test_what_was_under_way_ends_and_deletions_go_on(
        self, account: Account, lost: Host
    ) -> None:
        project = make_project(account, lost, size=2)
        give_history(project)
        kept, deleted = project.branches.order_by("name")
        common = {"project": project, "status": "running", "dispatched_at": timezone.now()}
        make = Operation.objects.create
        make(
            **common, action=Action.START_COMPUTE, branch=kept, chain="0" * 32, resources=[kept.id]
        )
        make(
            **common,
            action=Action.DELETE_TIMELINE,
            branch=deleted,
            chain="1" * 32,
            resources=[deleted.id],
        )
        declare_lost()
        ended = Operation.objects.get(status="cancelled")
        assert (ended.action, ended.error) == ("start_compute", "its host was lost")
        assert Operation.objects.get(action=Action.DELETE_TIMELINE).status == "running"
        restores = Operation.objects.filter(action=Action.RESTORE_FROM_STORE)
        assert list(restores.values_list("branch_id", flat=True)) == [kept.id]

    def test_projects_without_a_copy_stay(self, account: Account, lost: Host) -> None:
        stays, moves = make_project(account, lost), make_project(account, lost)
        give_history(moves)
        said = declare_lost()
        assert "Other hosts restore 1 projects. 1 stay, as the store has no copy of them." in said
        stays.refresh_from_db()
        assert stays.host_id == "lost"

    def test_the_api_declares_a_host_lost(
        self, api: DjangoClient, account: Account, lost: Host, settings: Any
    ) -> None:
        settings.OPERATORS = {account.name}
        moves = make_project(account, lost)
        make_project(account, lost)  # without a copy
        give_history(moves)
        answer = api.post("/api/v2/status/hosts/lost/lost").json()
        lost.refresh_from_db()
        assert lost.lost_at is not None
        assert answer["host"]["lost_at"] == lost.lost_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        counts = [answer[name] for name in ("restored_elsewhere", "without_copy", "without_place")]
        assert counts == [1, 1, 0]
        event = Event.objects.get(type="project.host_lost")
        assert (event.project_id, event.account_id) == (moves.id, account.id)
        local = api.post("/api/v2/status/hosts/local/lost")
        assert local.status_code == 409

    def test_projects_without_a_place_follow_later(self, account: Account, lost: Host) -> None:
        project = make_project(account, lost)
        give_history(project)
        Project.objects.filter(id=project.id).update(pg_version=15)
        assert "1 stay, as no other host has room" in declare_lost()
        continue_with_lost("local")
        project.refresh_from_db()
        assert project.host_id == "lost"
        Host.objects.filter(id="local").update(pg_versions=[15, 18])
        continue_with_lost("local")
        project.refresh_from_db()
        assert project.host_id == "local"

    def test_a_project_goes_to_the_host_that_has_received_its_log(
        self, account: Account, lost: Host
    ) -> None:
        Host.objects.filter(id="local").update(disk_bytes=100 * GB, disk_free_bytes=90 * GB)
        small = make_host("small", "local", history_store=STORE, proxy_seen_at=timezone.now())
        Host.objects.filter(id="small").update(disk_bytes=100 * GB, disk_free_bytes=9 * GB)
        project = make_project(account, lost)
        give_history(project)
        branch = project.branches.get()
        LogReceiver.objects.create(branch=branch, host=lost, attached_at=timezone.now())
        LogReceiver.objects.create(branch=branch, host=small, attached_at=timezone.now())
        now, local = timezone.now(), Host.objects.get(id="local")
        LogReceiver.objects.create(branch=branch, host=local, attached_at=now, lost_at=now)
        LogReceiver.objects.create(branch=branch, host=local)
        declare_lost()
        project.refresh_from_db()
        assert project.host_id == "small"

    def test_a_second_loss_keeps_the_first_copy(self, account: Account, lost: Host) -> None:
        """The second host was lost before it had restored the branch."""
        project = make_project(account, lost)
        give_history(project)
        third = make_host("third", "local", history_store=STORE, proxy_seen_at=timezone.now())
        Endpoint.objects.update(current_state="active", started_at=timezone.now())
        Host.objects.filter(id="local").update(draining=True, state_id="of-local")
        declare_lost()
        details = Operation.objects.get(action=Action.RESTORE_FROM_STORE).details
        assert details["ran_until"]
        silent = timezone.now() - AWAY_AFTER - timedelta(seconds=1)
        Host.objects.filter(id="local").update(draining=False)
        Host.objects.filter(id=third.id).update(
            worker_seen_at=silent, proxy_seen_at=silent, state_id="of-third"
        )
        give_history(project)
        call_command("hosts", "lost", "third", "--yes", stdout=io.StringIO())
        again = Operation.objects.filter(action=Action.RESTORE_FROM_STORE).latest("created_at")
        assert again.details == details
        assert again.branch is not None
        assert again.branch.copied_by == ["of-lost"]
        assert again.project.host_id == "local"

    def test_the_copy_of_the_host_that_was_lost_last_comes_first(
        self, account: Account, lost: Host
    ) -> None:
        """The host was lost before and has come back."""
        project = make_project(account, lost)
        project.branches.update(copied_by=["of-other", "of-lost"])
        give_history(project)
        declare_lost()
        assert project.branches.get().copied_by == ["of-lost", "of-other"]

    def test_only_the_position_of_a_chain_that_goes_on_says_that_the_store_has_all(
        self, account: Account, lost: Host
    ) -> None:
        projects = [make_project(account, lost) for _ in range(2)]
        give_history(projects[0])
        give_history(projects[1], ended_at=timezone.now(), end_reason="log lost")
        reset_at = timezone.now()
        Endpoint.objects.update(suspended_at=reset_at - timedelta(hours=1))
        Branch.objects.update(last_reset_at=reset_at)
        declare_lost()
        for project, known in zip(projects, ((1, 2), (None, None)), strict=True):
            operation = project.operations.get(action=Action.RESTORE_FROM_STORE)
            details = RestoreFromStoreDetails.from_json(operation.details)
            assert (details.chain, details.log_end) == known
            assert details.reset_at == reset_at.isoformat()


class TestTheLostHost:
    def test_it_is_shut_out_until_it_is_adopted(
        self, account: Account, lost: Host, settings: Any, tmp_path: Any
    ) -> None:
        settings.STATE_DIR, settings.HOST_NAME = tmp_path, "lost"
        from controlplane.compute.data.state_directory import identity

        Host.objects.filter(id="lost").update(state_id=identity())
        stays, moves = make_project(account, lost), make_project(account, lost)
        give_history(moves)
        declare_lost()
        with pytest.raises(HostTaken, match="was declared lost"):
            own_host()
        call_command("hosts", "adopt", "lost", stdout=io.StringIO())
        assert own_host().lost_at is None
        stays.refresh_from_db()
        assert stays.host_id == "lost"
        assert find_host("lost").living == 1


class TestSilence:
    @pytest.fixture(autouse=True)
    def after_a_minute(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.HOST_LOST_AFTER = 1.0
        monkeypatch.setattr(lost_branches, "_silences", {})

    @pytest.fixture
    def project(self, account: Account, lost: Host) -> Project:
        made = make_project(account, lost)
        give_history(made)
        return made

    def look(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        for at in seconds:
            monkeypatch.setattr(time, "monotonic", lambda at=at: at)
            Host.objects.filter(id="local").update(worker_seen_at=timezone.now())
            lost_branches.look_after_lost_hosts(Host.objects.get(id="local"))

    def test_a_host_that_was_seen_to_be_silent_for_long_is_lost(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.look(monkeypatch, 1000, 1020, 1040, 1059)
        assert untouched(project)
        self.look(monkeypatch, 1061)
        project.refresh_from_db()
        assert project.host_id == "local"

    def test_time_without_looks_does_not_count(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while the database was away, when no host could give a sign of life."""
        self.look(monkeypatch, 1000, 1061, 1080)
        assert untouched(project)

    def test_never_without_the_setting(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.HOST_LOST_AFTER = None
        self.look(monkeypatch, 1000, 1025, 1050, 1075)
        assert untouched(project)
