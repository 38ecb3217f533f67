"""`expires_at` and `ttl_interval_seconds` of branches: set, changed, cleared, and due."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.models import Account, Branch, Endpoint, Event, Host, Operation, Project
from controlplane.operations.engine.scheduling import schedule_deletion
from controlplane.operations.rounds.expiry import BATCH_SIZE, MAX_WAITING, expire_branches
from tests.controlplane import fields
from tests.controlplane.fields import assert_fields
from tests.controlplane.rows import make_host, make_project
from tests.support.project import Project as OfService
from tests.support.project import refusal
from tests.support.waiting import wait_for


def within(**ahead: float) -> datetime:
    return datetime.now(UTC) + timedelta(**ahead)


def printed(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def refused(project: OfService, attributes: dict[str, Any], branch_id: str = "") -> tuple[int, str]:
    """Return the refusal of a PATCH of the branch; without an id, of the creation of a branch."""
    path = project.branch_path(branch_id) if branch_id else project.path + "/branches"
    method = "PATCH" if branch_id else "POST"
    return refusal(project.client.call(method, path, json={"branch": attributes}))


def changed(project: OfService, branch_id: str, **attributes: Any) -> Any:
    path = project.branch_path(branch_id)
    return project.client.patch(path, {"branch": attributes})["branch"]


class TestSetting:
    def test_it_is_set_changed_and_cleared(self, project: OfService) -> None:
        end = within(hours=2).replace(microsecond=0)
        made = project.new_branch(name="brief", expires_at=printed(end))["branch"]
        assert_fields(made, fields.BRANCH, fields.BRANCH_AT_TIMES)
        assert made["expires_at"] == printed(end)
        assert 7190 <= made["ttl_interval_seconds"] <= 7200
        later = end + timedelta(hours=1)
        assert changed(project, made["id"], expires_at=printed(later))["expires_at"] == printed(
            later
        )
        # A PATCH does not change what it does not contain.
        kept = changed(project, made["id"], name="renamed")
        assert kept["expires_at"] == printed(later)
        listed = project.client.get(project.path + "/branches", search="renamed")["branches"][0]
        assert listed["expires_at"] == printed(later)
        cleared = changed(project, made["id"], expires_at=None)
        assert cleared.keys().isdisjoint({"expires_at", "ttl_interval_seconds"})
        events = project.client.get("/events", branch_id=made["id"], type="branch.updated")
        times = [event["changes"].get("expires_at") for event in events["events"]]
        assert [None if one is None else one["to"] is None for one in times] == [True, None, False]

    @pytest.mark.thorough
    def test_a_time_to_live(self, project: OfService) -> None:
        made = project.new_branch(ttl_interval_seconds=600)["branch"]
        assert made["ttl_interval_seconds"] == 600
        # Within a second of the time of the request.
        for seconds in range(601, 606):
            again = changed(project, made["id"], ttl_interval_seconds=seconds)
            assert again["ttl_interval_seconds"] == seconds
        left = datetime.fromisoformat(made["expires_at"]) - within()
        assert timedelta(seconds=570) < left < timedelta(seconds=602)

    @pytest.mark.parametrize(
        ("attributes", "status", "words"),
        [
            ({"expires_at": "2020-01-01T00:00:00Z"}, 422, "must be in the future"),
            ({"expires_at": "2999-01-01T00:00:00"}, 400, "expires_at"),
            ({"expires_at": "2999-01-01"}, 400, "expires_at"),
            ({"expires_at": "tomorrow"}, 400, "expires_at"),
            ({"expires_at": 32503680000}, 400, "expires_at"),
            ({"expires_at": "9999-12-31T23:59:59.9Z"}, 422, "too far in the future"),
            ({"ttl_interval_seconds": 0}, 400, "ttl_interval_seconds"),
            ({"ttl_interval_seconds": True}, 400, "ttl_interval_seconds"),
            ({"ttl_interval_seconds": 10**18}, 400, "ttl_interval_seconds"),
            (
                {"ttl_interval_seconds": 5, "expires_at": "2999-01-01T00:00:00Z"},
                400,
                "send only one of them",
            ),
            ({"expires_at": "2999-01-01T00:00:00Z", "protected": True}, 422, "a protected branch"),
            ({"archived": True}, 422, "branch.archived is not offered by this server"),
        ],
    )
    @pytest.mark.parametrize("is_new", [True, False])
    def test_refusals(
        self,
        standing: OfService,
        spare_branch_id: str,
        attributes: dict[str, Any],
        status: int,
        words: str,
        is_new: bool,
    ) -> None:
        answer = refused(standing, attributes, "" if is_new else spare_branch_id)
        assert (answer[0], words in answer[1]) == (status, True), answer

    @pytest.mark.thorough
    def test_a_branch_that_cannot_be_deleted_cannot_expire(self, project: OfService) -> None:
        end = {"expires_at": printed(within(hours=1))}
        parent = project.new_branch_id()
        child = project.new_branch_id(parent_id=parent)
        protected = project.new_branch_id(protected=True)
        assert "the default branch cannot expire" in refused(project, end, project.branch_id)[1]
        assert f"children cannot expire: {child}" in refused(project, end, parent)[1]
        assert "a protected branch cannot expire" in refused(project, end, protected)[1]
        unprotected = changed(project, protected, protected=False, **end)
        assert unprotected["expires_at"] == end["expires_at"]

    @pytest.mark.thorough
    def test_an_expiring_branch_cannot_become_undeletable(self, project: OfService) -> None:
        brief = project.new_branch_id(ttl_interval_seconds=3600)
        assert refused(project, {"parent_id": brief}) == (
            422,
            "the branch expires, and cannot become a parent: clear its expires_at first",
        )
        status, words = refused(project, {"protected": True}, brief)
        assert (status, "cannot become protected" in words) == (422, True)
        path = project.branch_path(brief, "/set_as_default")
        status, words = refusal(project.client.call("POST", path))
        assert (status, "cannot become the default" in words) == (422, True)
        # It may be the source of schema-only branches, which do not prevent its deletion.
        project.new_branch(parent_id=brief, init_source="schema-only")
        assert changed(project, brief, protected=True, expires_at=None)["protected"] is True


class TestExpiry:
    @pytest.mark.thorough
    def test_a_branch_is_deleted_when_it_expires(self, project: OfService) -> None:
        made = project.new_branch(endpoint=True, name="brief", ttl_interval_seconds=3600)
        branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
        changed(project, branch_id, ttl_interval_seconds=1)
        path = project.branch_path(branch_id)
        wait_for(lambda: project.client.call("GET", path).status_code == 404, "its end", timeout=30)
        assert not project.stack.data_dir(branch_id).parent.exists()
        assert not project.is_running(endpoint_id)
        begun = [row for row in project.operations() if row["initiator"]["type"] == "expiry"]
        assert [row["action"] for row in begun] == ["delete_timeline", "suspend_compute"]
        assert {row["status"] for row in begun} == {"finished"}
        events = project.client.get("/events", branch_id=branch_id, actor="expiry")["events"]
        kinds = [event["type"] for event in events]
        assert {"branch.expired", "branch.deleted", "endpoint.deleted"} <= set(kinds)
        (expired,) = [event for event in events if event["type"] == "branch.expired"]
        assert expired["operation_ids"] == [row["id"] for row in reversed(begun)]


def make_due(*branches: Branch, ago: float = 60.0) -> None:
    end = timezone.now() - timedelta(seconds=ago)
    ids = [branch.id for branch in branches]
    Branch.objects.filter(id__in=ids).update(expires_at=end, ttl_interval_seconds=1)


def deletions(project: Project | None = None) -> list[str | None]:
    found = Operation.objects.filter(action="delete_timeline")
    if project:
        found = found.filter(project=project)
    return list(found.order_by("created_at").values_list("branch_id", flat=True))


def spare(project: Project) -> list[Branch]:
    return list(project.branches.filter(default=False).order_by("name"))


class TestRound:
    def test_a_branch_that_cannot_be_deleted_yet_is_tried_again(
        self, account: Account, host: Host
    ) -> None:
        project = make_project(account, host, size=4)
        default, parent, protected, free = project.branches.order_by("name")
        child = Branch.objects.create(project=project, name="child", parent=parent)
        Branch.objects.filter(id=protected.id).update(protected=True)
        make_due(default, parent, protected, free)
        expire_branches(host)
        expire_branches(host)
        assert deletions() == [free.id]
        Branch.objects.filter(id=child.id).update(deleted_at=timezone.now())
        Branch.objects.filter(id=protected.id).update(protected=False)
        expire_branches(host)
        assert set(deletions()) == {free.id, parent.id, protected.id}

    def test_it_waits_for_operations_in_progress(self, account: Account, host: Host) -> None:
        project = make_project(account, host, size=2)
        (branch,) = spare(project)
        Operation.objects.update(status="running", resources=[branch.id], branch=branch)
        make_due(branch)
        expire_branches(host)
        assert deletions() == [branch.id]
        (deletion,) = Operation.objects.filter(action="delete_timeline")
        assert (deletion.status, deletion.initiator_type) == ("scheduling", "expiry")
        (event,) = Event.objects.filter(type="branch.expired")
        assert (event.branch_id, event.actor_type) == (branch.id, "expiry")

    def test_a_branch_stays_while_its_past_is_recovered(self, account: Account, host: Host) -> None:
        project = make_project(account, host, size=3)
        source, other = spare(project)
        past = Branch.objects.create(project=project, name="", parent=source, hidden=True)
        # It holds only the new branch.
        Operation.objects.filter(branch=other).update(
            action="create_branch",
            status="running",
            branch=past,
            resources=[past.id],
            details={"source_branch_id": source.id, "at_time": "2026-11-01T00:00:00Z"},
        )
        make_due(source, other)
        expire_branches(host)
        assert deletions() == [other.id]
        Operation.objects.filter(action="create_branch").update(status="finished")
        expire_branches(host)
        assert set(deletions()) == {source.id, other.id}

    @pytest.mark.parametrize("status", ["failed", "cancelled"])
    def test_a_failed_deletion_is_scheduled_again_after_a_pause(
        self, account: Account, host: Host, status: str
    ) -> None:
        project = make_project(account, host, size=2)
        (branch,) = spare(project)
        Endpoint.objects.update(deleted_at=timezone.now())
        make_due(branch)
        expire_branches(host)
        Operation.objects.update(status=status, updated_at=timezone.now())
        expire_branches(host)
        assert len(deletions()) == 1
        Operation.objects.update(updated_at=timezone.now() - timedelta(minutes=6))
        expire_branches(host)
        assert deletions() == [branch.id, branch.id]

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_an_account_with_many_expiring_branches_delays_no_other(
        self, account: Account, host: Host
    ) -> None:
        for _ in range(BATCH_SIZE + 5):
            make_due(*spare(make_project(account, host, size=2)), ago=3600)
        crowded = make_project(account, host, size=MAX_WAITING + 5)
        make_due(*spare(crowded), ago=7200)
        other = Account.objects.create(name="bob")
        hers = make_project(other, host, size=2)
        make_due(*spare(hers), ago=1)
        expire_branches(host)
        assert len(deletions(hers)) == 1
        assert len(deletions(crowded)) == MAX_WAITING
        assert len(deletions()) == MAX_WAITING + BATCH_SIZE - 1
        expire_branches(host)
        assert len(deletions(crowded)) == MAX_WAITING
        assert len(deletions()) == MAX_WAITING + 1 + BATCH_SIZE + 5
        Operation.objects.filter(project=crowded).update(status="finished")
        Branch.objects.filter(id__in=deletions(crowded)).update(deleted_at=timezone.now())
        expire_branches(host)
        assert len(set(deletions(crowded))) == MAX_WAITING + 4

    def test_a_project_whose_deletions_fail_delays_no_other(
        self, account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = (make_project(account, host, size=2) for _ in range(2))
        make_due(*spare(first), ago=60)
        make_due(*spare(second), ago=30)

        def fails_for_the_first(project: Project, branch: Branch) -> list[Operation]:
            if project.id == first.id:
                raise ValueError("of this project alone")
            return schedule_deletion(project, branch)

        monkeypatch.setattr(
            "controlplane.operations.rounds.expiry.schedule_deletion", fails_for_the_first
        )
        expire_branches(host)
        assert (deletions(first), len(deletions(second))) == ([], 1)

    def test_other_branches_are_left_alone(self, account: Account, host: Host) -> None:
        elsewhere = make_host("other", worker_seen_at=None)
        make_due(*spare(make_project(account, elsewhere, size=2)))
        gone = make_project(account, host, size=2)
        make_due(*spare(gone))
        Project.objects.filter(id=gone.id).update(deleted_at=timezone.now())
        lasting = make_project(account, host, size=2)
        make_due(*spare(lasting), ago=-60)
        expire_branches(host)
        assert deletions() == []
