"""Receivers are untrusted: their addresses are none that only Perch's host can reach, and they can
delay only their own account."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from typing import Any

import pytest

from controlplane.webhooks.urls import NotAllowed, Target, may_be_called, target_of
from tests.support.client import Client
from tests.support.receiver import Answer, Message, Receiver, receiving
from tests.support.stack import Stack
from tests.support.waiting import wait_for
from tests.support.webhooks import Webhook

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::8.8.8.8"]
NOT_PUBLIC = """
0.0.0.0 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16
169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1
64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 100::1 2001::1 2001:db8::1 2002:7f00:1::1 3fff::1
5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
""".split()


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_allowed(address: str) -> None:
    assert may_be_called(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_other_addresses_are_refused(address: str) -> None:
    assert not may_be_called(address)


def test_the_operator_may_allow_networks(settings: Any) -> None:
    settings.WEBHOOK_ALLOWED_NETWORKS = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    assert all(may_be_called(address) for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"))
    assert not any(may_be_called(address) for address in ("10.2.0.1", "fc00::1", "127.0.0.1"))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/")),
        ("https://EXAMPLE.com.:8443/a?b=c", Target("https", "example.com", 8443, "/a?b=c")),
        ("https://[2606:4700::1111]/x", Target("https", "2606:4700::1111", 443, "/x")),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com", "https"),
        ("ftp://example.com", "https"),
        ("file:///etc/passwd", "https"),
        ("gopher://example.com", "https"),
        ("example.com", "https"),
        ("", "ASCII"),
        ("https://", "name a host"),
        ("https:///x", "name a host"),
        ("https://user:word@example.com", "password"),
        ("https://user@example.com", "password"),
        ("https://example.com\\@evil.example", "password"),
        ("https://evil.example\\x", "name a host"),
        ("https://exa mple.com", "ASCII"),
        ("https://example.com/\n", "ASCII"),
        ("https://exämple.com", "ASCII"),
        ("https://example.com:0", "port 0"),
        ("https://example.com:65536", "not a URL"),
        ("https://example.com:x", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://example.com/#x", "fragment"),
        ("https://example.com/" + "x" * 2048, "2048"),
        ("https://127.0.0.1", "public address"),
        ("https://[::ffff:127.0.0.1]", "public address"),
        ("https://[fe80::1%25eth0]", "public address"),
    ],
)
def test_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(NotAllowed, match=words):
        target_of(url)


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
            "SELECT count(taken_by) FROM controlplane_job WHERE subject = ANY(%s)",
            [webhook_ids],
        ).fetchone()
    assert row is not None
    return int(row[0])
