"""The worker may stop or be killed while it sends: unconfirmed deliveries are sent again."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.receiver import Answer, Message, Receiver, receiving
from tests.support.service import Service
from tests.support.webhooks import Webhook


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
        doing = "SELECT worker_id FROM procrastinate_jobs WHERE lock = %s AND status = 'doing'"
        row = database.execute(doing, [webhook.id]).fetchone()
        assert row is not None
        service.kill("worker")
        released.set()
        # Another worker need not wait until this one counts as silent.
        database.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 min'"
            " WHERE id = %s",
            row,
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
