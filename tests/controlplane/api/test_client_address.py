"""The client's address behind reverse proxies, in what Perch notes of a request."""

import http.client
import json
from contextlib import closing
from ipaddress import ip_network
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import console.client_address
import controlplane.api.http.client_address
from tests.support.client import Client
from tests.support.log_lines import await_line
from tests.support.stack import PROXY_ADDRESS, Stack

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize("module", [controlplane.api.http.client_address, console.client_address])
class TestClientOf:
    @pytest.mark.parametrize(
        ("peer", "forwarded_for", "client"),
        [
            ("192.0.2.1", "", "192.0.2.1"),
            # Anybody can send the header: it counts only from a proxy.
            ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
            ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
            # What the client itself wrote is to the left.
            ("10.0.0.1", "203.0.113.9, 198.51.100.7", "198.51.100.7"),
            ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
            ("fd00::1", "2001:db8::7", "2001:db8::7"),
            ("10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
            ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
            # All are proxies: the request is the first one's own.
            ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
            ("10.0.0.1", "", "10.0.0.1"),
            # What is no address is nobody's.
            ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
            ("10.0.0.1", "198.51.100.7, unknown, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "198.51.100.7:4711", "10.0.0.1"),
            ("10.0.0.1", "fe80::1%forged text", "10.0.0.1"),
            ("10.0.0.1", "198.51.100.7,", "10.0.0.1"),
            ("10.0.0.1", "010.0.0.5", "10.0.0.1"),
            # A Unix socket has no address.
            ("", "198.51.100.7", ""),
        ],
    )
    def test_it_works(self, module: ModuleType, peer: str, forwarded_for: str, client: str) -> None:
        assert module.client_of(peer, forwarded_for, PROXIES) == client

    def test_without_proxies_the_header_is_ignored(self, module: ModuleType) -> None:
        assert module.client_of("10.0.0.1", "198.51.100.7", []) == "10.0.0.1"


def asked(url: str, key: str, *, source: str, forwarded_for: str, path: str = "/api_keys") -> None:
    """Send a request from the address `source`."""
    place = urlsplit(url)
    headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": forwarded_for}
    with closing(
        http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=30, source_address=(source, 0)
        )
    ) as connection:
        connection.request("POST", f"{place.path}{path}", json.dumps({"key_name": "x"}), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()


def noted(client: Client) -> set[str]:
    """The addresses in the events of the account."""
    return {event["actor"].get("address", "") for event in client.get("/events")["events"]}


def test_the_api_notes_the_client_behind_a_trusted_proxy(stack: Stack, alice: Client) -> None:
    asked(stack.api_url, alice.key, source=PROXY_ADDRESS, forwarded_for="1.2.3.4, 192.0.2.77")
    assert noted(alice) == {"192.0.2.77"}
    keys = alice.get("/api_keys")
    assert {key["last_used_from_addr"] for key in keys if key["name"] == "tests"} == {"192.0.2.77"}
    assert await_line(stack, "api", client="192.0.2.77", path="/api/v2/api_keys")


def test_a_client_cannot_choose_its_address(stack: Stack, alice: Client) -> None:
    asked(stack.api_url, alice.key, source="127.0.0.10", forwarded_for="192.0.2.78")
    assert noted(alice) == {"127.0.0.10"}
