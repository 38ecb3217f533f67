"""Deliveries reach their receivers: signed, in order, and again after failures for a limited time.
They use the real queue and worker, and real HTTP servers."""

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.processes import processes_of
from tests.support.project import refusal
from tests.support.receiver import Answer, Receiver, receiving
from tests.support.stack import ROOT, Stack
from tests.support.waiting import wait_for
from tests.support.webhooks import Webhook, signature, signatures


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def webhook(stack: Stack, alice: Client, receiver: Receiver) -> Iterator[Webhook]:
    """A webhook that wants only events of projects, so that changes of webhooks do not
    interfere."""
    made = Webhook(stack, alice, receiver.url, event_types=["project.updated"])
    yield made
    # Remaining deliveries would keep the worker busy.
    alice.call("DELETE", made.path)


def test_what_the_receiver_gets(webhook: Webhook, receiver: Receiver) -> None:
    webhook.write_events(["it was renamed"])
    (message,) = receiver.await_messages(1)
    event = message.event
    assert message.json == {"type": "project.updated", "timestamp": event["at"], "data": event}
    assert (event["type"], event["summary"]) == ("project.updated", "it was renamed")
    assert event["actor"]["type"] == "platform"
    assert message.headers["content-type"] == "application/json"
    assert message.headers["webhook-id"] == f"evt-{event['id']}"
    assert abs(int(message.headers["webhook-timestamp"]) - time.time()) < 60
    assert signatures(message) == [signature(webhook.secret, message)]

    delivery = webhook.await_delivery(status="delivered")
    assert delivery["attempts"] == 1
    assert (delivery["event_id"], delivery["event_type"]) == (event["id"], "project.updated")
    attempt = delivery["last_attempt"]
    assert (attempt["status_code"], attempt["body"]) == (200, "taken")
    assert "error" not in attempt
    assert webhook.delivery(delivery["id"])["message"] == message.json


def test_a_change_by_the_api_is_delivered(webhook: Webhook, receiver: Receiver) -> None:
    webhook.change(event_types=["webhook.created"])
    other = Webhook(webhook.stack, webhook.client, "https://hooks.example/", enabled=False)
    (message,) = receiver.await_messages(1)
    assert message.event["type"] == "webhook.created"
    assert message.event["actor"]["type"] == "user"
    assert other.id in message.event["summary"]


def test_the_documentations_example_verifies_a_message(
    webhook: Webhook, receiver: Receiver
) -> None:
    text = (ROOT / "docs" / "how-to" / "webhooks.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    defined: dict[str, Any] = {}
    exec(example, defined)
    verify = defined["verify"]
    webhook.client.post(f"{webhook.path}/rotate_secret")
    webhook.write_events(["signed"])
    (message,) = receiver.await_messages(1)
    verify(webhook.secret, message.headers, message.body)
    old = {**message.headers, "webhook-timestamp": str(int(time.time()) - 301)}
    for secret, headers, body in (
        (webhook.secret, message.headers, message.body + b" "),
        (webhook.secret, {**message.headers, "webhook-id": "evt-0"}, message.body),
        (webhook.secret, old, message.body),
        ("whsec_" + "A" * 32, message.headers, message.body),
    ):
        with pytest.raises(ValueError):
            verify(secret, headers, body)


@pytest.mark.thorough
def test_deliveries_come_in_order_after_a_failure(webhook: Webhook, receiver: Receiver) -> None:
    receiver.answers = lambda message: Answer(503, b"not now \0\xff")
    sent = [f"number {number}" for number in range(5)]
    webhook.write_events(sent[:3])
    receiver.await_messages(1)
    webhook.await_delivery(status="pending")
    wait_for(lambda: webhook.deliveries()[-1].get("last_attempt"), "the attempt to be noted")
    failed = webhook.deliveries()[-1]
    assert (failed["status"], failed["attempts"]) == ("pending", 1)
    assert failed["last_attempt"]["error"] == "answered 503"
    assert failed["last_attempt"]["body"] == "not now \ufffd\ufffd"
    assert "failing_since" in webhook.get()
    assert webhook.get()["last_error"] == "answered 503"
    webhook.write_events(sent[3:])
    receiver.answers = lambda message: Answer()
    webhook.let_pass(hours=0.1)
    messages = receiver.await_messages(6)
    assert [message.event["summary"] for message in messages] == [sent[0], *sent]
    # A repetition has the same id, although it has a new signature.
    assert messages[0].headers["webhook-id"] == messages[1].headers["webhook-id"]
    wait_for(lambda: "failing_since" not in webhook.get(), "the service to be healthy")
    assert "last_error" not in webhook.get()
    assert {one["status"] for one in webhook.deliveries()} == {"delivered"}


@pytest.mark.thorough
def test_pauses_grow_until_a_delivery_is_given_up_after_a_day(
    webhook: Webhook, receiver: Receiver
) -> None:
    receiver.answers = lambda message: Answer(500)
    webhook.write_events(["indigestible"])
    pauses = []
    for attempts in range(1, 40):
        webhook.await_delivery(attempts=attempts)
        if webhook.deliveries()[0]["status"] == "failed":
            break
        with webhook.stack.database() as database:
            row = database.execute(
                "SELECT extract(epoch FROM next_attempt_at - attempted_at)"
                " FROM controlplane_webhookdelivery WHERE webhook_id = %s",
                [webhook.id],
            ).fetchone()
        assert row is not None
        pauses.append(float(row[0]))
        webhook.let_pass(hours=(pauses[-1] + 1) / 3600)
    assert webhook.deliveries()[0]["status"] == "failed"
    assert 8 < len(pauses) < 25
    assert 3.9 < pauses[0] < 6.1
    assert all(later > earlier for earlier, later in pairwise(pauses[:9]))
    assert 12 * 3600 < sum(pauses) < 24 * 3600
    assert webhook.get()["enabled"]
    # The next one is sent nevertheless.
    receiver.answers = lambda message: Answer()
    webhook.let_pass(hours=1)
    webhook.write_events(["light"])
    webhook.await_delivery(status="delivered")


def test_a_delivery_that_is_always_refused_delays_the_others_for_a_limited_time(
    webhook: Webhook, receiver: Receiver
) -> None:
    receiver.answers = lambda message: Answer(400 if message.event["summary"] == "bad" else 200)
    webhook.write_events(["bad", "good"])
    for attempts in range(1, 6):
        receiver.await_messages(attempts)
        assert receiver.summaries == ["bad"] * attempts
        webhook.let_pass(hours=75 / 3600)
    receiver.await_messages(6)
    assert receiver.summaries[:6] == ["bad"] * 5 + ["good"]


def test_two_secrets_are_valid_while_one_is_replaced(webhook: Webhook, receiver: Receiver) -> None:
    turned = webhook.client.post(f"{webhook.path}/rotate_secret")["webhook"]
    assert turned["secret"] != webhook.secret
    assert "previous_secret_expires_at" in webhook.get()
    webhook.write_events(["signed twice"])
    (message,) = receiver.await_messages(1)
    assert signatures(message) == [
        signature(turned["secret"], message),
        signature(webhook.secret, message),
    ]
    webhook.let_pass(hours=24.1)
    webhook.write_events(["signed once"])
    message = receiver.await_messages(2)[1]
    assert signatures(message) == [signature(turned["secret"], message)]


def test_a_test_precedes_waiting_deliveries_of_its_webhook(
    webhook: Webhook, receiver: Receiver
) -> None:
    with receiving() as other:
        beside = Webhook(webhook.stack, webhook.client, other.url, event_types=["*"])
        receiver.answers = lambda message: Answer(500)
        webhook.write_events(["waits"])
        webhook.await_delivery(attempts=1)
        receiver.answers = lambda message: Answer(
            500 if message.json["type"] != "webhook.test" else 202
        )
        delivery = webhook.test()
        assert (delivery["event_type"], delivery["status"]) == ("webhook.test", "pending")
        wait_for(
            lambda: webhook.delivery(delivery["id"])["status"] == "delivered", "the test to be made"
        )
        assert [message.json["type"] for message in receiver.messages[:2]] == [
            "project.updated",
            "webhook.test",
        ]
        assert "webhook.test" not in [message.json["type"] for message in other.messages]
        beside.delete()


def test_a_failed_test_is_not_repeated(webhook: Webhook, receiver: Receiver) -> None:
    receiver.answers = lambda message: Answer(404)
    webhook.test()
    delivery = webhook.await_delivery(status="failed")
    assert (delivery["attempts"], delivery["last_attempt"]["status_code"]) == (1, 404)


def test_a_delivery_is_sent_again_on_request(webhook: Webhook, receiver: Receiver) -> None:
    webhook.write_events(["twice"])
    delivery = webhook.await_delivery(status="delivered")
    again = webhook.resend(delivery["id"])
    assert (again["id"], again["status"]) == (delivery["id"], "pending")
    webhook.await_delivery(status="delivered", attempts=2)
    first, second = receiver.messages
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.json == second.json


def test_pages_of_deliveries(webhook: Webhook, receiver: Receiver) -> None:
    receiver.answers = lambda message: Answer(500 if message.event["summary"] == "4" else 200)
    webhook.write_events([str(number) for number in range(5)])
    webhook.await_delivery(attempts=1)
    page = webhook.client.get(f"{webhook.path}/deliveries", limit=3)
    rest = webhook.client.get(f"{webhook.path}/deliveries", cursor=page["pagination"]["cursor"])
    ids = [one["id"] for one in (*page["deliveries"], *rest["deliveries"])]
    assert ids == [one["id"] for one in webhook.deliveries()]
    assert len(ids) == 5
    assert [one["id"] for one in webhook.deliveries(status="pending")] == ids[:1]
    assert len(webhook.deliveries(status="delivered,failed")) == 4
    answer = webhook.client.call("GET", f"{webhook.path}/deliveries", params={"status": "lost"})
    assert refusal(answer) == (400, 'unknown status "lost"; use one of: pending, delivered, failed')


@pytest.mark.thorough
def test_another_worker_may_take_a_job_of_the_same_webhook_at_the_same_time(
    webhook: Webhook, receiver: Receiver
) -> None:
    (worker,) = processes_of(webhook.stack, "worker")
    with webhook.stack.database() as other, webhook.stack.database() as observer:
        with other.transaction():
            other.execute(
                "INSERT INTO controlplane_job (queue, task, subject, account_id, taken_by, seen_at)"
                " VALUES ('webhooks', 'send_deliveries', %s, 0, gen_random_uuid(), 'infinity')",
                [webhook.id],
            )
            webhook.write_events(["taken twice"])
            waits = (
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND query LIKE '%UPDATE controlplane_job SET taken_by%'"
            )
            wait_for(lambda: observer.execute(waits).fetchall(), "the worker to take the other")
        # The other worker has it; once that job has ended, this one continues.
        wait_for(lambda: not observer.execute(waits).fetchall(), "the worker to see it")
        assert receiver.messages == []
        other.execute(
            "DELETE FROM controlplane_job WHERE subject = %s AND seen_at = 'infinity'", [webhook.id]
        )
    receiver.await_messages(1)
    assert processes_of(webhook.stack, "worker") == [worker]


class TestDisabled:
    def test_by_a_receiver_that_answers_410(self, webhook: Webhook, receiver: Receiver) -> None:
        receiver.answers = lambda message: Answer(410)
        with receiving() as other:
            beside = Webhook(
                webhook.stack, webhook.client, other.url, event_types=["webhook.disabled"]
            )
            webhook.write_events(["last words"])
            wait_for(lambda: not webhook.get()["enabled"], "the webhook to be disabled")
            (message,) = other.await_messages(1)
            beside.delete()
        assert webhook.get()["disabled_reason"] == "the receiver has answered 410 Gone"
        assert message.event["actor"]["type"] == "platform"
        assert message.event["changes"] == {"enabled": {"from": True, "to": False}}
        assert webhook.id in message.event["summary"]
        assert webhook.deliveries()[0]["status"] == "failed"

    @pytest.mark.thorough
    def test_after_a_week_of_failures_and_enabled_again(
        self, webhook: Webhook, receiver: Receiver
    ) -> None:
        receiver.answers = lambda message: Answer(500)
        webhook.write_events(["first"])
        webhook.await_delivery(attempts=1)
        webhook.write_events(["second"])
        webhook.let_pass(hours=6 * 24)
        receiver.await_messages(2)
        wait_for(lambda: webhook.deliveries()[1]["status"] == "failed", "the first to be given up")
        assert webhook.get()["enabled"]
        webhook.let_pass(hours=24)
        wait_for(lambda: not webhook.get()["enabled"], "the webhook to be disabled")
        assert webhook.get()["disabled_reason"] == "the receiver has accepted nothing for a week"
        count = len(receiver.messages)
        webhook.write_events(["unheard"])

        receiver.answers = lambda message: Answer()
        on = webhook.change(enabled=True)
        assert "disabled_reason" not in on
        assert "failing_since" not in on
        webhook.write_events(["heard"])
        webhook.await_delivery(status="delivered")
        assert receiver.summaries[count:][-1] == "heard"
        assert "unheard" not in receiver.summaries
