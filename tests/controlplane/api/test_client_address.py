"""The client's address behind reverse proxies, in what Perch notes of a request."""

import http.client
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from ipaddress import ip_network
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from requests.adapters import HTTPAdapter

import console.client_address
import controlplane.api.http.client_address
from controlplane.api.http.server import with_client_address
from controlplane.process_accounts import console_key
from tests.support.client import Client
from tests.support.log_lines import await_line, read_log
from tests.support.stack import PROXY_ADDRESS, Stack
from tests.support.waiting import slowness, wait_for

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


class TestSignedByTheConsole:
    """The API believes its own console about the addresses of its users."""

    def reached(self, header: str) -> str:
        seen: list[str] = []

        def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            seen.append(environ["REMOTE_ADDR"])
            return []

        environ = {"REMOTE_ADDR": "127.0.0.1", "HTTP_PERCH_CLIENT_ADDRESS": header}
        with_client_address(application, [], ["new", "old"])(environ, lambda *given: None)
        return seen[0]

    def signed(self, address: str, key: str) -> str:
        with console.client_address.client_context(address):
            return console.client_address.signed(key)

    @pytest.mark.parametrize("key", ["new", "old", console_key("new"), console_key("old")])
    @pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
    def test_it_works(self, key: str, address: str) -> None:
        assert self.reached(self.signed(address, key)) == address

    def test_others_are_not_believed(self) -> None:
        signed = self.signed("192.0.2.7", "new")
        for wrong in (
            *("", "192.0.2.7", "192.0.2.7 é", "192.0.2.7 ", f"{signed} "),
            signed.replace("192.0.2.7", "192.0.2.8"),
            self.signed("192.0.2.7", "another"),
            self.signed("not an address", "new"),
        ):
            assert self.reached(wrong) == "127.0.0.1"


class From(HTTPAdapter):
    """Connects from this address of the machine."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, source_address=(self.source, 0), **named)


def sign_in(stack: Stack, key: str, *, source: str) -> int:
    """Sign in at the console; return the status of the answer."""
    with requests.Session() as browser:
        browser.mount("http://", From(source))
        page = browser.get(f"{stack.console_url}/sign-in", timeout=60).text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)', page)
        assert token
        answer = browser.post(
            f"{stack.console_url}/sign-in",
            {"key": key, "csrfmiddlewaretoken": token[1]},
            timeout=60,
            allow_redirects=False,
        )
        return answer.status_code


def test_the_api_notes_the_address_of_the_consoles_user(stack: Stack, alice: Client) -> None:
    assert sign_in(stack, alice.key, source="127.0.0.20") == 302
    keys = alice.get("/api_keys")
    assert "127.0.0.20" in {key["last_used_from_addr"] for key in keys}


def test_wrong_keys_at_the_console_keep_nobody_else_from_signing_in(stack: Stack) -> None:
    over = threading.Event()

    def go_on(number: int) -> None:
        while not over.is_set():
            sign_in(stack, f"wrong-{number}", source="127.0.0.21")

    keys = [stack.new_key() for _ in range(3)]
    with ThreadPoolExecutor(100) as threads:
        try:
            for number in range(100):
                threads.submit(go_on, number)
            wait_for(lambda: refused(stack) > 100, "wrong keys to be refused", timeout=60)
            for key in keys:
                began = time.monotonic()
                assert sign_in(stack, key, source="127.0.0.22") == 302
                assert time.monotonic() - began < 3 * slowness()
        finally:
            over.set()


def refused(stack: Stack) -> int:
    return sum(line.get("status") == "401" for line in read_log(stack.state_dir, "api"))
