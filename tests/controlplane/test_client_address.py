"""The client's address behind reverse proxies, in what Perch notes of a request."""

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import console.client_address
import controlplane.api.client_address
from tests.support.client import Client
from tests.support.log_lines import await_line
from tests.support.service import Service
from tests.support.stack import PROXY_ADDRESS, Stack, free_port
from tests.support.waiting import wait_for

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize("module", [controlplane.api.client_address, console.client_address])
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


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
CONFIGURATION = """
daemon off; pid {directory}/pid; error_log {directory}/error.log; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    proxy_set_header Host $host:$server_port;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    server {{ listen 127.0.0.1:{api_port}; location / {{ proxy_pass {api}; }} }}
    server {{ listen 127.0.0.1:{console_port}; location / {{ proxy_pass {console}; }} }}
}}
"""


@pytest.fixture
def service(state_dir: Path) -> Iterator[Service]:
    running = Service(state_dir, PERCH_TRUSTED_PROXIES="127.0.0.1/32")
    yield running
    running.down()


@pytest.fixture
def nginx(service: Service, tmp_path: Path) -> Iterator[dict[str, int]]:
    """nginx in front of the service; the ports of the API and of the console behind it."""
    ports = {"api_port": free_port(), "console_port": free_port()}
    api = service.stack.api_url.removesuffix("/api/v2")
    text = CONFIGURATION.format(
        directory=tmp_path, api=api, console=service.stack.console_url, **ports
    )
    (tmp_path / "nginx.conf").write_text(text)
    assert NGINX is not None, "install nginx-light, as .ci/run does"
    process = subprocess.Popen([NGINX, "-c", tmp_path / "nginx.conf"], stderr=sys.stderr)
    try:
        health = f"http://127.0.0.1:{ports['api_port']}/healthz"
        wait_for(lambda: service.answers(health), "nginx")
        yield ports
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.thorough
def test_addresses_behind_nginx(service: Service, nginx: dict[str, int]) -> None:
    client, forged = service.client, "203.0.113.66"
    url = f"http://127.0.0.1:{nginx['api_port']}/api/v2"
    asked(url, client.key, source="127.0.0.21", forwarded_for=forged)
    assert noted(client) == {"127.0.0.21"}
    # A user of the console: the console tells the API whose request it was.
    place = http.client.HTTPConnection(
        "127.0.0.1", nginx["console_port"], timeout=30, source_address=("127.0.0.22", 0)
    )
    with closing(place) as browser:
        token, cookies = _form(browser, "/sign-in", "")
        cookies = _sent(browser, "/sign-in", cookies, csrfmiddlewaretoken=token, key=client.key)
        token, cookies = _form(browser, "/api-keys/new", cookies)
        _sent(browser, "/api-keys/new", cookies, csrfmiddlewaretoken=token, name="by console")
    assert noted(client) == {"127.0.0.21", "127.0.0.22"}
    assert await_line(service.stack, "web", client="127.0.0.22", path="/sign-in")


def _form(browser: http.client.HTTPConnection, path: str, cookies: str) -> tuple[str, str]:
    """The token of the page's form, and the cookies."""
    browser.request("GET", path, headers={"Cookie": cookies})
    answer = browser.getresponse()
    html = answer.read().decode()
    token = html.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    assert token, html
    return token, _cookies(answer, cookies)


def _sent(browser: http.client.HTTPConnection, path: str, cookies: str, **fields: Any) -> str:
    headers = {
        "Cookie": cookies,
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Forwarded-For": "203.0.113.66",
    }
    browser.request("POST", path, urlencode(fields), headers)
    answer = browser.getresponse()
    html = answer.read().decode()
    assert answer.status in (200, 302), html
    return _cookies(answer, cookies)


def _cookies(answer: http.client.HTTPResponse, before: str) -> str:
    known = dict(one.split("=", 1) for one in before.split("; ") if one)
    for header in answer.headers.get_all("Set-Cookie") or []:
        name, value = header.split(";")[0].split("=", 1)
        known[name] = value
    return "; ".join(f"{name}={value}" for name, value in known.items())
