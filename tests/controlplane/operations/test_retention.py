"""Rows of resources that were deleted long ago, former passwords and old events are removed; others
stay."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane import clock
from controlplane.events.types import EventType
from controlplane.history.retention import forget_former_passwords
from controlplane.models import (
    Account,
    ApiKey,
    Branch,
    BranchState,
    Endpoint,
    Event,
    FormerPassword,
    Host,
    Operation,
    Project,
    Role,
)
from controlplane.operations.rounds import retention
from controlplane.operations.rounds.retention import (
    forget_api_keys,
    forget_deleted,
    forget_events,
    forget_operations,
)
from controlplane.webhooks import deliveries
from controlplane.webhooks.subscriptions import WebhookSpec, create_webhook, delete_webhook
from controlplane.webhooks.upkeep import look_after_webhooks
from tests.controlplane.rows import make_host, make_project

LONG_AGO = timezone.now() - timedelta(days=31)
LATELY = timezone.now() - timedelta(days=29)


def counts() -> list[int]:
    return [model.objects.count() for model in (Project, Branch, Endpoint, Operation)]


@pytest.mark.parametrize(("deleted_at", "left"), [(LONG_AGO, 0), (LATELY, 1), (None, 1)])
def test_a_project(account: Account, host: Host, deleted_at: datetime | None, left: int) -> None:
    project = make_project(account, host, size=3)
    branch = Branch.objects.filter(project=project)[0]
    Role.objects.create(branch=branch, name="alice", verifier="", encrypted_password="secret")
    Branch.objects.exclude(id=branch.id).update(parent=branch)
    Project.objects.filter(id=project.id).update(deleted_at=deleted_at)
    forget_deleted(host)
    assert counts() == [left, 3 * left, 3 * left, 3 * left]
    assert Role.objects.count() == left


def test_a_project_with_unfinished_work_is_kept(account: Account, host: Host) -> None:
    project = make_project(account, host)
    Project.objects.update(deleted_at=LONG_AGO)
    Operation.objects.create(
        project=project,
        action="delete_tenant",
        status="running",
        chain=uuid.uuid4(),
        resources=[project.id],
    )
    forget_deleted(host)
    assert Project.objects.count() == 1


def test_branches_and_endpoints_of_an_existing_project(account: Account, host: Host) -> None:
    project = make_project(account, host, size=3)
    kept, parent, child = Branch.objects.filter(project=project).order_by("name")
    Branch.objects.filter(id=child.id).update(parent=parent)
    for branch in (parent, child):
        Branch.objects.filter(id=branch.id).update(deleted_at=LONG_AGO)
        Endpoint.objects.filter(branch=branch).update(deleted_at=LONG_AGO)
    forget_deleted(host)
    assert counts() == [1, 1, 1, 1]
    assert Branch.objects.get().id == Endpoint.objects.get().branch_id == kept.id


def test_a_branch_outlives_its_schema_source(account: Account, host: Host) -> None:
    project = make_project(account, host, size=2)
    source, made = Branch.objects.filter(project=project).order_by("name")
    Branch.objects.filter(id=made.id).update(schema_of=source, init_source="schema-only")
    Branch.objects.filter(id=source.id).update(deleted_at=LONG_AGO)
    Endpoint.objects.filter(branch=source).update(deleted_at=LONG_AGO)
    forget_deleted(host)
    kept = Branch.objects.get()
    assert (kept.id, kept.source, kept.init_source) == (made.id, None, "schema-only")


def test_an_endpoint_that_was_deleted_recently_keeps_its_branch(
    account: Account, host: Host
) -> None:
    make_project(account, host)
    Branch.objects.update(deleted_at=LONG_AGO)
    Endpoint.objects.update(deleted_at=LATELY)
    forget_deleted(host)
    assert counts() == [1, 1, 1, 0]


def test_another_hosts_projects_are_left_alone(account: Account, host: Host) -> None:
    other = make_host("other")
    make_project(account, other)
    Project.objects.update(deleted_at=LONG_AGO)
    forget_deleted(host)
    assert Project.objects.count() == 1


def test_old_operations_of_what_lives(
    account: Account, host: Host, api: DjangoClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "OLD_OPERATIONS_BATCH", 1)
    project = make_project(account, host)
    Branch.objects.update(current_state=BranchState.READY)
    endpoint = Endpoint.objects.get()
    now = timezone.now()

    def operation(days: float, status: str = "finished", **fields: Any) -> uuid.UUID:
        made = Operation.objects.create(
            **{"project": project, "branch": endpoint.branch, "endpoint": endpoint}
            | {"action": "start_compute", "status": status, "resources": [endpoint.id]}
            | {"chain": uuid.uuid4(), "created_at": now - timedelta(days=days)}
            | fields
        )
        return made.id

    Operation.objects.all().delete()
    newer = [operation(days) for days in (1, 2, 3, 179)]
    old, failed = operation(181), operation(300, "failed")
    retry = operation(170, retry_of_id=old)
    chain = uuid.uuid4()
    waited_for = operation(200, chain=chain), operation(199, "running", chain=chain)
    page = f"/api/v2/projects/{project.id}/operations"
    first = api.get(page, {"limit": 3}).json()
    forget_operations(host)
    kept = {*newer, retry, *waited_for}
    assert set(Operation.objects.values_list("id", flat=True)) == kept
    assert {old, failed}.isdisjoint(kept)
    # A cursor from before leads to what is left.
    rest = api.get(page, {"limit": 100, "cursor": first["pagination"]["cursor"]}).json()
    listed = [row["id"] for row in (*first["operations"], *rest["operations"])]
    assert {*listed} == {str(one) for one in kept}
    settings.OPERATION_RETENTION = 100
    forget_operations(host)
    assert {*newer[:3], *waited_for} == set(Operation.objects.values_list("id", flat=True))


def test_the_operations_of_a_branch_that_could_not_be_made_are_kept(
    account: Account, host: Host
) -> None:
    make_project(account, host, size=2)
    first, second = Branch.objects.order_by("id")
    Branch.objects.filter(id=first.id).update(current_state=BranchState.READY)
    Branch.objects.filter(id=second.id).update(current_state=BranchState.INIT)
    Operation.objects.update(status="failed")
    for number, row in enumerate(Operation.objects.all()):
        Operation.objects.filter(id=row.id).update(
            created_at=timezone.now() - timedelta(days=200, seconds=number)
        )
    forget_operations(host)
    assert {row.branch_id for row in Operation.objects.all()} == {second.id}


def verifiers() -> list[str]:
    return list(FormerPassword.objects.order_by("id").values_list("verifier", flat=True))


def test_a_changed_or_deleted_roles_password_is_kept(account: Account, host: Host) -> None:
    branch = Branch.objects.get(project=make_project(account, host))
    role = Role.objects.create(branch=branch, name="one", verifier="first")
    role.verifier = "second"
    role.save()
    role.valid_until = clock.now()
    role.save()
    assert verifiers() == ["first"]
    role.delete()
    assert verifiers() == ["first", "second"]


def test_it_is_forgotten_after_the_retention(account: Account, host: Host) -> None:
    project = make_project(account, host)
    branch = Branch.objects.get(project=project)
    for name, age in (("old", 3700), ("young", 3500)):
        replaced_at = clock.now() - timedelta(seconds=age)
        FormerPassword.objects.create(branch_id=branch.id, verifier=name, replaced_at=replaced_at)
    FormerPassword.objects.create(branch_id="br-gone", verifier="x", replaced_at=clock.now())
    project.history_retention_seconds = 3600
    project.save()
    forget_former_passwords(host)
    assert verifiers() == ["young"]
    Branch.objects.filter(id=branch.id).update(deleted_at=clock.now())
    forget_former_passwords(host)
    assert verifiers() == []


def write(account: Account | None, count: int, *, days_ago: float = 0) -> None:
    at = timezone.now() - timedelta(days=days_ago)
    Event.objects.bulk_create(
        Event(
            account=account,
            type=EventType.PROJECT_UPDATED,
            actor_type="user",
            summary=str(number),
            at=at + timedelta(seconds=number),
        )
        for number in range(count)
    )


@pytest.mark.parametrize(("days", "left"), [(89, 5), (91, 0)])
def test_events_are_removed_after_the_days(
    account: Account, host: Host, days: float, left: int
) -> None:
    write(account, 5, days_ago=days)
    write(None, 1)
    forget_events(host)
    assert Event.objects.count() == left + 1


def test_events_are_removed_in_batches(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVENTS_BATCH", 10)
    monkeypatch.setattr(retention, "MAX_EVENT_BATCHES", 3)
    write(account, 45, days_ago=100)
    with CaptureQueriesContext(connection) as captured:
        forget_events(host)
    assert sum("DELETE" in query["sql"] for query in captured) == 3
    assert Event.objects.count() == 15
    # The oldest were removed first.
    assert Event.objects.order_by("at")[0].summary == "30"
    forget_events(host)
    assert Event.objects.count() == 0


def test_events_beyond_the_number_of_an_account_are_removed(
    account: Account, host: Host, settings: LazySettings
) -> None:
    settings.EVENTS_PER_ACCOUNT = 10
    bob = Account.objects.create(name="bob")
    write(account, 25)
    write(bob, 10)
    write(None, 12)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE controlplane_event")
    forget_events(host)
    assert [Event.objects.filter(account=one).count() for one in (account, bob, None)] == [10] * 3
    kept = Event.objects.filter(account=account).order_by("at")
    assert kept[0].summary == "15"


def test_tests_of_webhooks_push_out_no_other_events(
    account: Account, host: Host, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.EVENTS_PER_ACCOUNT = 10
    monkeypatch.setattr(retention, "TESTS_KEPT", 6)
    monkeypatch.setattr(retention, "EVENTS_BATCH", 4)
    write(None, 10, days_ago=1)
    urls = [f"https://example.com/{number}" for number in range(3)]
    busy, other, deleted = (
        create_webhook(account, WebhookSpec(url=url, event_types=["*"]))[0] for url in urls
    )
    for webhook, tests in ((other, 5), (deleted, 3), (busy, 25)):
        made = [deliveries.test_webhook(account, webhook.id).id for _ in range(tests)]
    delete_webhook(account, deleted.id)
    look_after_webhooks(host)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE controlplane_event")
    forget_events(host)
    assert Event.objects.filter(account=None, type=EventType.PROJECT_UPDATED).count() == 10
    assert other.deliveries.filter(event__account=None).count() == 5
    tested = busy.deliveries.filter(event__account=None).order_by("id")
    assert list(tested.values_list("id", flat=True)) == made[-6:]
    assert Event.objects.filter(type=EventType.WEBHOOK_TEST).count() == 11


def test_a_deleted_accounts_events_are_removed_in_batches(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 4)
    write(account, 10)
    write(Account.objects.create(name="bob"), 3)
    Account.objects.filter(id=account.id).update(deleted_at=LONG_AGO)
    with CaptureQueriesContext(connection) as captured:
        forget_deleted(host)
    deletions = [one["sql"] for one in captured if 'DELETE FROM "controlplane_event"' in one["sql"]]
    assert sum("LIMIT 4" in one for one in deletions) == 4
    assert not Account.objects.filter(id=account.id).exists()
    assert Event.objects.count() == 3


def test_keys_are_removed_as_long_after_their_end_as_events(account: Account, host: Host) -> None:
    kept, gone = (timezone.now() - timedelta(days=days) for days in (89, 91))
    for end in (kept, gone):
        ApiKey.issue(account, "expired", expires_at=end)
        revoked, _ = ApiKey.issue(account, "revoked")
        ApiKey.objects.filter(id=revoked.id).update(revoked_at=end)
    valid, _ = ApiKey.issue(account, "valid")
    forget_api_keys(host)
    left = ApiKey.objects.exclude(id=valid.id)
    assert {one.revoked_at or one.expires_at for one in left} == {kept}
    assert left.count() == 2
