"""Receivers are untrusted: they cannot redirect Perch to private addresses, and can delay only
their own account."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.client import Client
from tests.support.receiver import Answer, Message, Receiver, receiving
from tests.support.stack import Stack
from tests.support.waiting import wait_for
from tests.support.webhooks import Webhook


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.mark.parametrize("way", ["by a name", "by a redirect"])
def test_private_addresses_are_not_called(
    stack: Stack, alice: Client, receiver: Receiver, way: str
) -> None:
    with receiving("127.0.0.2") as private:
        # Only the resolver takes this text for an address.
        named = f"http://127.2:{private.server_port}/"
        receiver.answers = lambda message: Answer(307, location=private.url)
        webhook = Webhook(stack, alice, named if way == "by a name" else receiver.url)
        webhook.test()
        attempt = webhook.await_delivery(status="failed")["last_attempt"]
        assert "public address" in attempt["error"]
        assert "status_code" not in attempt
        assert len(receiver.messages) == (way == "by a redirect")
        assert private.messages == []


@pytest.mark.thorough
def test_receivers_that_hang_delay_no_others_and_use_only_some_slots(
    stack: Stack, alice: Client, bob: Client, receiver: Receiver
) -> None:
    released = threading.Event()

    def hang(message: Message) -> Answer:
        released.wait(30)
        return Answer()

    with ExitStack() as held:
        hanging = []
        for _ in range(20):  # more than the number of slots
            one = held.enter_context(receiving())
            one.answers = hang
            hanging.append((one, Webhook(stack, alice, one.url, event_types=["project.updated"])))
        hanging[0][1].write_events(["for all"])
        wait_for(lambda: sum(len(one.messages) for one, _ in hanging) >= 8, "half of the slots")
        assert jobs_under_way(stack, [webhook.id for _, webhook in hanging]) <= 8
        quick = Webhook(stack, bob, receiver.url, event_types=["project.updated"])
        quick.write_events(["quick"])
        receiver.await_messages(1)
        # All of her deliveries are older, but his did not wait for them.
        assert sum(len(one.messages) for one, _ in hanging) < 20
        released.set()
        for _, webhook in hanging:
            webhook.delete()
        quick.delete()


def jobs_under_way(stack: Stack, webhook_ids: list[str]) -> int:
    with stack.database() as database:
        row = database.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'doing' AND lock = ANY(%s)",
            [webhook_ids],
        ).fetchone()
    assert row is not None
    return int(row[0])
