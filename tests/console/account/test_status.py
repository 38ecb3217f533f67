"""The status page of the service, and the notice on every page when a process is down."""

import json
from typing import Any

import pytest
import requests

from console.pages import service_notice
from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person, Shop, signed_in
from tests.console.pages import Page
from tests.support.client import Client
from tests.support.stack import Stack
from tests.support.waiting import wait_for

AUTH = {"login": "pat", "read_only": False, "projects": []}
DOWN = {"regions": [{"id": "local", "name": "local", "missing": ["worker"], "problems": []}]}


@pytest.fixture(autouse=True)
def nothing_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_notice, "_heard", {})


@pytest.fixture
def operator(stack: Stack) -> Person:
    return signed_in(Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip()))


def test_it_works(operator: Person) -> None:
    page = Page(operator.get("/status"))
    # Other tests of the same service may have made starts fail.
    health = requests.get(operator.api.api_url.replace("/api/v2", "/healthz"), timeout=10).json()
    expected = "There are problems" if health.get("problems") else "All systems operational"
    assert expected in page.text
    assert "Host local" in page.text
    for name in ("Worker Up", "Proxy Up", "free", "Postgres 1"):
        assert name in page.text, name
    assert "Requests" in page.html
    answer = operator.htmx_get("/status/live", at="/status")
    assert Page(answer).html.strip().startswith('<div id="live"')
    assert Page(answer).pause == 5000
    assert 'href="/status"' in Page(operator.get("/")).html


def test_the_status_page_is_only_for_operators(alice: Person) -> None:
    assert 'href="/status"' not in Page(alice.get("/")).html
    answer = alice.get("/status")
    assert answer.status_code == 403
    assert "PERCH_OPERATORS" in Page(answer).text


def test_another_server_has_no_status_page(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.refuse(404, "not found")
    answer = dave.get("/status")
    assert answer.status_code == 404
    assert "Not supported by this server" in Page(answer).text


def test_a_silent_process_is_shown_with_its_last_sign_of_life(
    dave: Person, misbehaving: Misbehaving
) -> None:
    host = {"id": "eu", "missing": ["worker"], "worker_seen_seconds_ago": 7230}
    misbehaving.body = json.dumps({"hosts": [host], "webhooks": {}}).encode()
    page = Page(dave.get("/status/live"))
    assert "Worker Not responding last seen 2 h ago" in page.text
    assert "Proxy Up" in page.text


def hosts_of(api: Misbehaving, *hosts: dict[str, Any]) -> None:
    api.body = json.dumps({"hosts": hosts, "webhooks": {}}).encode()


def test_each_host_is_described(dave: Person, misbehaving: Misbehaving) -> None:
    hosts_of(
        misbehaving,
        {"id": "eu-1", "region_id": "eu", "cpus": 4, "cpu_load": 1.26, "memory_bytes": 8e9},
        {"id": "eu-2", "region_id": "eu", "draining": True, "on_replaced_postgres": ["ep-old"]},
    )
    page = Page(dave.get("/status"))
    assert "Load 1.3 on 4 CPUs" in page.text
    assert "Memory 8.0 GB" in page.text
    assert page.text.count("On a replaced Postgres ep-old until they are restarted") == 1
    assert "Host eu-2 no new projects Resume Remove…" in page.text
    assert "Host eu-1 Drain Remove…" in page.text
    hosts_of(misbehaving, {"id": "eu-1"})
    # The last host is there to stay.
    assert "Remove…" not in Page(dave.get("/status")).text


def test_a_host_is_drained_resumed_and_removed(dave: Person, misbehaving: Misbehaving) -> None:
    hosts_of(misbehaving, {"id": "eu-1"}, {"id": "eu-2"})
    for button, draining in (("on", True), ("off", False)):
        answer = dave.post("/status/hosts/eu-1/drain", {"to": button})
        assert answer["Location"] == "/status"
        assert misbehaving.asked_for("PATCH /api/v2/status/hosts/eu-1")
        assert json.loads(misbehaving.sent[-1]) == {"host": {"draining": draining}}
    for host, why in (
        ({}, "Its worker is up: stop it first."),
        (
            {"missing": ["worker"], "computes": {"idle": 1}},
            "It has projects, with 1 endpoint",
        ),
    ):
        hosts_of(misbehaving, {"id": "eu-1", **host}, {"id": "eu-2"})
        page = Page(dave.get("/status/hosts/eu-1/remove"))
        assert why in page.text
        assert "Remove host</button>" not in page.html
    hosts_of(misbehaving, {"id": "eu-1", "missing": ["worker"]}, {"id": "eu-2"})
    assert "Remove host</button>" in Page(dave.get("/status/hosts/eu-1/remove")).html
    assert dave.get("/status/hosts/eu-3/remove").status_code == 404
    misbehaving.refuse(409, "the host eu-1 is not empty: 2 projects")
    refused = dave.post("/status/hosts/eu-1/remove")
    assert "The host eu-1 is not empty: 2 projects" in Page(refused).text


def test_a_host_is_declared_lost(dave: Person, misbehaving: Misbehaving) -> None:
    silent = {"id": "eu-1", "missing": ["worker", "proxy"]}
    hosts_of(misbehaving, silent, {"id": "eu-2"})
    # It is offered for a host whose worker is silent alone.
    assert Page(dave.get("/status")).text.count("Declare lost…") == 1
    page = Page(dave.get("/status/hosts/eu-1/lost"))
    assert "Declare the host “eu-1” lost" in page.text
    assert "Declare lost</button>" in page.html
    misbehaving.body = json.dumps({"host": silent, "restored_elsewhere": 3}).encode()
    assert dave.post("/status/hosts/eu-1/lost", {"typed": "eu-2"}).status_code == 422
    assert dave.post("/status/hosts/eu-1/lost", {"typed": "eu-1"})["Location"] == "/status"
    assert misbehaving.asked_for("POST /api/v2/status/hosts/eu-1/lost")
    hosts_of(misbehaving, silent | {"lost_at": "2026-05-05T05:05:05Z"}, {"id": "eu-2"})
    page = Page(dave.get("/status"))
    assert "other hosts restore 3 projects" in page.text
    assert "Host eu-1 lost Drain Remove…" in page.text
    assert "Declare lost…" not in page.text
    # Nobody could restore its projects.
    for other in (
        {"region_id": "us"},
        {"missing": ["worker"]},
        {"lost_at": "2026-05-05T05:05:05Z"},
    ):
        hosts_of(misbehaving, silent, {"id": "eu-2", **other})
        page = Page(dave.get("/status/hosts/eu-1/lost"))
        assert "No other host of its region is up" in page.text
        assert "Declare lost</button>" not in page.html


class TestServiceNotice:
    @pytest.fixture
    def pat(self, misbehaving: Misbehaving, settings: Any) -> Person:
        """A user at a server that is Perch."""
        settings.MANAGEMENT_API_URL = misbehaving.url
        misbehaving.body = json.dumps(AUTH | DOWN).encode()
        return signed_in(Client(misbehaving.url, "a-key"))

    def heard(self, person: Person) -> str:
        wait_for(lambda: "does not respond" in Page(person.get("/")).text, "the word")
        return Page(person.get("/")).text

    def test_every_page_says_that_the_worker_is_down(self, pat: Person) -> None:
        assert "The worker of this service does not respond: operations wait" in self.heard(pat)

    def test_the_region_is_named_if_there_are_several(
        self, pat: Person, misbehaving: Misbehaving
    ) -> None:
        regions = [*DOWN["regions"], {"id": "eu", "missing": ["proxy", "moon"]}]
        misbehaving.body = json.dumps(AUTH | {"regions": regions}).encode()
        words = self.heard(pat)
        assert "The worker of the region local" in words
        assert "The proxy of the region eu does not respond: clients cannot connect" in words
        assert "The moon of the region eu" in words

    def test_a_renewal_brings_the_notice(
        self, alice: Person, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service_notice, "_messages", lambda server: ["Down."])
        html = alice.htmx_get(f"{shop.url}/live").content.decode()
        assert 'id="service"' in html
        assert "Down." in html

    def test_no_page_waits_for_the_status(
        self, pat: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The request for the status may take any time."""
        asked: list[Any] = []
        monkeypatch.setattr(service_notice._threads, "submit", lambda *given: asked.append(given))
        for _ in range(3):
            assert pat.get("/").status_code == 200
        assert len(asked) == 1

    def test_other_servers_are_not_asked(self, dave: Person, misbehaving: Misbehaving) -> None:
        dave.get("/")
        assert not [path for path in misbehaving.asked if "status" in path]

    def test_a_failing_server_is_not_reported_as_down(
        self, pat: Person, misbehaving: Misbehaving
    ) -> None:
        misbehaving.refuse(500, "oh")
        for _ in range(3):
            pat.get("/")
        assert "does not respond" not in Page(Browser().get("/sign-in")).text

    def test_no_notice_while_all_processes_run(self, alice: Person, stack: Stack) -> None:
        alice.get("/")
        wait_for(lambda: service_notice._heard[stack.api_url].heard_at > 0, "the answer")
        assert "does not respond" not in Page(alice.get("/")).text


def test_it_answers_under_any_host_name_and_without_the_api() -> None:
    answer = Browser().get("/healthz", headers={"Host": "10.1.2.3:8000"})
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer.headers["Cache-Control"] == "no-store"
