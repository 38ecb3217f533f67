"""The recording of attempts, and the rounds that remove, give up and reschedule deliveries."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from controlplane import clock
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account, DeliveryStatus, Host, Project, Webhook, WebhookDelivery
from controlplane.operations.rounds.retention import forget_deleted
from controlplane.webhooks import upkeep
from controlplane.webhooks.deliveries import resend
from controlplane.webhooks.posting import Outcome
from controlplane.webhooks.sending import note
from controlplane.webhooks.subscriptions import WebhookChanges, delete_webhook, update_webhook
from controlplane.webhooks.upkeep import look_after_webhooks
from tests.controlplane.rows import make_project, make_webhook

TAKEN = Outcome("", 200, b"", 0.1)
REFUSED = Outcome("answered 500", 500, b"", 0.1)
ME = uuid.uuid4()


@pytest.fixture
def webhook(account: Account) -> Webhook:
    return make_webhook(account, "branch.created", sender=ME)


@pytest.fixture
def delivery(webhook: Webhook) -> WebhookDelivery:
    return another(webhook)


def another(webhook: Webhook) -> WebhookDelivery:
    record(happened(EventType.BRANCH_CREATED, summary="x", account_id=webhook.account_id))
    return WebhookDelivery.objects.latest("id")


def change(webhook: Webhook, **values: Any) -> None:
    Webhook.objects.filter(id=webhook.id).update(**values)


def make_older(delivery: WebhookDelivery, **ago: timedelta) -> None:
    now = timezone.now()
    WebhookDelivery.objects.filter(id=delivery.id).update(
        **{name: now - span for name, span in ago.items()}
    )


def jobs() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM controlplane_job")
        return int(cursor.fetchone()[0])


class TestRecording:
    def test_an_attempt_at_a_delivery_that_another_worker_took_does_not_count(
        self, webhook: Webhook, delivery: WebhookDelivery
    ) -> None:
        change(webhook, sender=uuid.uuid4())
        assert not note(delivery, TAKEN, sender=ME)
        delivery.refresh_from_db()
        assert (delivery.status, delivery.attempts) == (DeliveryStatus.PENDING, 0)

    def test_an_attempt_for_a_deleted_webhook_does_not_count(
        self, webhook: Webhook, delivery: WebhookDelivery
    ) -> None:
        webhook.delete()
        assert not note(delivery, TAKEN, sender=ME)

    @pytest.mark.parametrize("outcome", [TAKEN, REFUSED])
    def test_a_request_to_send_again_during_an_attempt_causes_another_attempt(
        self, account: Account, webhook: Webhook, delivery: WebhookDelivery, outcome: Outcome
    ) -> None:
        resend(account, webhook.id, delivery.public_id)
        assert note(delivery, outcome, sender=ME)
        delivery.refresh_from_db()
        assert (delivery.status, delivery.attempts) == (DeliveryStatus.PENDING, 1)
        assert delivery.asked_for
        assert delivery.next_attempt_at is not None
        assert delivery.next_attempt_at <= clock.now()

    def test_waiting_deliveries_are_due_once_the_receiver_is_back(
        self, webhook: Webhook, delivery: WebhookDelivery
    ) -> None:
        waiting = another(webhook)
        for failed in (delivery, waiting):
            assert note(failed, REFUSED, sender=ME)
        assert note(delivery, TAKEN, sender=ME)
        waiting.refresh_from_db()
        assert waiting.next_attempt_at is not None
        assert waiting.next_attempt_at <= clock.now()
        webhook.refresh_from_db()
        assert (webhook.failures, webhook.failing_since, webhook.held_until) == (0, None, None)

    @pytest.mark.parametrize(
        "wanted", [WebhookChanges(enabled=True), WebhookChanges(url="https://other.example/")]
    )
    def test_a_changed_receiver_has_no_failures(
        self, account: Account, webhook: Webhook, delivery: WebhookDelivery, wanted: WebhookChanges
    ) -> None:
        for _ in range(5):
            assert note(delivery, REFUSED, sender=ME)
        change(webhook, enabled=not wanted.enabled, disabled_reason="for a test")
        before = jobs()
        update_webhook(account, webhook.id, wanted)
        webhook.refresh_from_db()
        delivery.refresh_from_db()
        assert (webhook.failures, webhook.failing_since, webhook.held_until) == (0, None, None)
        assert webhook.disabled_reason == ""
        assert delivery.next_attempt_at is not None
        assert delivery.next_attempt_at <= clock.now()
        assert jobs() == before + 1


class TestRounds:
    def test_old_deliveries_are_removed(
        self, webhook: Webhook, delivery: WebhookDelivery, host: Host
    ) -> None:
        younger, pending = another(webhook), another(webhook)
        for one, days in ((delivery, 15), (younger, 13)):
            note(one, TAKEN, sender=ME)
            make_older(one, ended_at=timedelta(days=days))
        make_older(pending, created_at=timedelta(days=15))
        look_after_webhooks(host)
        assert list(WebhookDelivery.objects.order_by("id")) == [younger, pending]

    @pytest.mark.parametrize(
        ("state", "given_up"),
        [
            ({}, False),
            ({"enabled": False}, True),
            ({"failing_since": timezone.now() - timedelta(hours=23)}, False),
            ({"failing_since": timezone.now() - timedelta(hours=25)}, True),
        ],
    )
    def test_overdue_deliveries_of_a_failing_receiver_are_given_up(
        self,
        webhook: Webhook,
        delivery: WebhookDelivery,
        host: Host,
        state: dict[str, Any],
        given_up: bool,
    ) -> None:
        young = another(webhook)
        make_older(delivery, gives_up_at=timedelta(minutes=1))
        change(webhook, **state)
        look_after_webhooks(host)
        delivery.refresh_from_db()
        young.refresh_from_db()
        assert (delivery.status == DeliveryStatus.FAILED) == given_up
        assert bool(delivery.error) == bool(delivery.ended_at) == given_up
        assert young.status == DeliveryStatus.PENDING

    def test_a_previous_secret_is_removed_after_its_time(
        self, webhook: Webhook, host: Host
    ) -> None:
        for minutes, left in ((1, "old"), (-1, "")):
            until = timezone.now() + timedelta(minutes=minutes)
            change(webhook, previous_secret="old", previous_secret_until=until)
            look_after_webhooks(host)
            webhook.refresh_from_db()
            assert webhook.previous_secret == left

    def test_a_delivery_without_a_job_gets_another(
        self, webhook: Webhook, delivery: WebhookDelivery, host: Host
    ) -> None:
        make_older(delivery, next_attempt_at=timedelta(minutes=2))
        look_after_webhooks(host)
        assert jobs() == 1
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM controlplane_job")
        for _ in range(2):
            look_after_webhooks(host)
            assert jobs() == 1

    def test_a_deletion_costs_the_same_however_many_deliveries_there_are(
        self, account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upkeep, "BATCH_SIZE", 2)
        one, gone, other = (make_webhook(account, "branch.created") for _ in range(3))
        for _ in range(5):
            another(one)
        ended = WebhookDelivery.objects.filter(webhook=gone).order_by("id")[:2]
        WebhookDelivery.objects.filter(id__in=ended.values("id")).update(
            status=DeliveryStatus.DELIVERED, ended_at=clock.now()
        )
        delete_webhook(account, gone.id)
        assert WebhookDelivery.objects.filter(webhook=gone.id).count() == 5
        look_after_webhooks(host)
        left = WebhookDelivery.objects.values_list("webhook_id", flat=True)
        assert sorted(left) == sorted([one.id, other.id] * 5)

    def test_removing_a_project_removes_its_webhooks(
        self, account: Account, host: Host, webhook: Webhook, delivery: WebhookDelivery
    ) -> None:
        project = make_project(account, host)
        change(webhook, project=project)
        Project.objects.filter(id=project.id).update(deleted_at=timezone.now() - timedelta(days=31))
        forget_deleted(host)
        assert not Webhook.objects.exists()
        look_after_webhooks(host)
        assert not WebhookDelivery.objects.exists()
