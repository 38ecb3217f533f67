"""An event and its deliveries to interested webhooks are written in one transaction, and
unconfirmed deliveries are sent again after the end of a worker."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.events.outbox import QUEUE
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account, Event, Host, JobTask, WebhookDelivery
from controlplane.models.webhook import DELIVERY_TIMEOUT
from controlplane.webhooks.subscriptions import delete_webhook
from controlplane.webhooks.upkeep import look_after_webhooks
from tests.controlplane.rows import make_project, make_webhook
from tests.support.receiver import Answer, Message, Receiver, receiving
from tests.support.service import Service
from tests.support.webhooks import Webhook


def event(
    account: Account | None, kind: EventType = EventType.BRANCH_CREATED, **named: Any
) -> Event:
    return happened(kind, summary="x", account_id=account.id if account else None, **named)


def told() -> list[str]:
    return list(WebhookDelivery.objects.order_by("id").values_list("webhook_id", flat=True))


def jobs() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT queue, task, subject, account_id FROM controlplane_job")
        return cursor.fetchall()  # type: ignore[no-any-return]


def test_each_webhook_that_wants_the_type_gets_a_delivery(account: Account, host: Host) -> None:
    project, other = make_project(account, host), make_project(account, host)
    stranger = Account.objects.create(name="bob")
    wanted = [
        make_webhook(account, "*"),
        make_webhook(account, "branch.created", "branch.deleted"),
        make_webhook(account, "*", project=project),
    ]
    make_webhook(account, "branch.deleted")
    make_webhook(account, "*", project=other)
    make_webhook(account, "*", enabled=False)
    make_webhook(stranger, "*")
    record(event(account, project=project))
    assert sorted(told()) == sorted(one.id for one in wanted)
    assert sorted(subject for _, _, subject, _ in jobs()) == sorted(one.id for one in wanted)


def test_events_without_a_project_are_not_sent_to_a_projects_webhook(
    account: Account, host: Host
) -> None:
    make_webhook(account, "*", project=make_project(account, host))
    record(event(account), event(None))
    assert (told(), jobs()) == ([], [])


def test_events_of_one_statement_keep_their_order_and_have_one_job(account: Account) -> None:
    one = make_webhook(account, "*")
    events = [event(account) for _ in range(20)]
    record(*events)
    deliveries = WebhookDelivery.objects.order_by("id")
    assert [delivery.event_id for delivery in deliveries] == [made.id for made in events]
    assert jobs() == [(QUEUE, JobTask.SEND_DELIVERIES, one.id, account.id)]
    assert {one.gives_up_at - one.next_attempt_at for one in deliveries if one.next_attempt_at} == {
        DELIVERY_TIMEOUT
    }


def test_an_event_that_is_rolled_back_has_no_delivery(account: Account) -> None:
    make_webhook(account, "*")
    with transaction.atomic():
        record(event(account))
        assert len(told()) == len(jobs()) == 1
        transaction.set_rollback(True)
    assert (told(), jobs()) == ([], [])


def test_deliveries_need_no_further_statement(account: Account) -> None:
    for _ in range(3):
        with CaptureQueriesContext(connection) as captured:
            record(event(account), event(account))
        assert len(captured) == 1
        make_webhook(account, "*")


def test_deleting_an_event_deletes_its_deliveries(account: Account) -> None:
    make_webhook(account, "*")
    record(event(account), event(account))
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM controlplane_event WHERE id = (SELECT min(id) FROM controlplane_event)"
        )
    assert len(told()) == 1


@pytest.mark.django_db(transaction=True)
def test_a_webhook_can_be_deleted_while_events_are_recorded(account: Account) -> None:
    """Whichever transaction ends first, neither fails."""
    for deletion_ends_first in (True, False):
        webhook = make_webhook(account, "*")
        with ThreadPoolExecutor(1) as another_connection, transaction.atomic():
            if deletion_ends_first:
                record(event(account))
                another_connection.submit(_delete, account, webhook.id).result(timeout=30)
            else:
                delete_webhook(account, webhook.id)
                another_connection.submit(_record, account).result(timeout=30)
    look_after_webhooks(Host())
    assert told() == []


def _record(account: Account) -> None:
    try:
        record(event(account))
    finally:
        connection.close()


def _delete(account: Account, webhook_id: str) -> None:
    try:
        delete_webhook(account, webhook_id)
    finally:
        connection.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def webhook(service: Service, receiver: Receiver) -> Webhook:
    return Webhook(service.stack, service.client, receiver.url, event_types=["project.updated"])


def answer_first(receiver: Receiver) -> threading.Event:
    """Make the receiver hold the answer to its first message until the event is set."""
    released = threading.Event()

    def answers(message: Message) -> Answer:
        if len(receiver.messages) == 1:
            released.wait(30)
        return Answer()

    receiver.answers = answers
    return released


@pytest.mark.thorough
def test_killed_between_sending_and_recording(
    service: Service, webhook: Webhook, receiver: Receiver
) -> None:
    released = answer_first(receiver)
    webhook.write_events(["first", "second", "third"])
    receiver.await_messages(1)
    with service.stack.database() as database:
        service.kill("worker")
        released.set()
        # Another worker need not wait until this one counts as silent.
        database.execute(
            "UPDATE controlplane_job SET seen_at = now() - interval '1 min'"
            " WHERE subject = %s AND taken_by IS NOT NULL",
            [webhook.id],
        )
    messages = receiver.await_messages(4, timeout=60)
    assert [message.event["summary"] for message in messages] == [
        *("first", "first", "second", "third")
    ]
    assert messages[0].headers["webhook-id"] == messages[1].headers["webhook-id"]
    webhook.await_delivery(status="delivered")
    assert [one["attempts"] for one in webhook.deliveries()] == [1, 1, 1]
    assert len(receiver.messages) == 4


@pytest.mark.thorough
def test_a_worker_that_stops_does_not_wait_for_receivers(
    service: Service, webhook: Webhook, receiver: Receiver
) -> None:
    released = answer_first(receiver)
    webhook.write_events(["first", "second"])
    receiver.await_messages(1)
    (worker,) = service.processes("worker")
    began = time.monotonic()
    worker.terminate()
    worker.wait(10)
    assert time.monotonic() - began < 2.5  # a receiver may take 3 seconds
    # There was no answer, and this is not counted as a failure of the receiver.
    assert [one["attempts"] for one in webhook.deliveries()] == [0, 0]
    released.set()
    messages = receiver.await_messages(3, timeout=60)
    assert [message.event["summary"] for message in messages] == ["first", "first", "second"]
    webhook.await_delivery(status="delivered", attempts=1)
