"""What protects the key and the user: headers, cookies, the encrypted session, settings."""

import io
import logging
import os
import subprocess
import sys
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from tests.console.browser import Browser
from tests.console.conftest import Person, Shop
from tests.console.pages import Page
from tests.support.stack import Stack

ROOT = Path(__file__).resolve().parents[3]


def test_it_works(alice: Person) -> None:
    """A page may load and run only what comes from the console."""
    policy = alice.get("/")["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_nothing_is_cached(carol: Person, still_shop: Shop) -> None:
    for path in ("/", still_shop.url, f"{still_shop.url}/live", "/nowhere"):
        assert carol.get(path)["Cache-Control"] == "no-store"


def test_static_files_are_cached_for_ever_by_their_hash(alice: Person) -> None:
    html = alice.get("/").content.decode()
    addresses = [part for part in html.split('"') if part.startswith("/static/perch.")]
    assert len(addresses) == 3
    for address in addresses:
        answer = alice.get(address)
        assert "immutable" in answer["Cache-Control"]
        assert not answer.cookies
        # During an upgrade, content with another hash must not be cached under this address.
        assert alice.get(f"{address}0")["Cache-Control"] == "no-store"


def test_the_cookie_does_not_reveal_the_key(alice: Person) -> None:
    cookie = alice.browser.cookies["perch_session"]
    assert alice.api.key not in cookie.value
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert not cookie["secure"]


def test_cookies_are_secure_if_the_page_is(visitor: Browser) -> None:
    answer = visitor.get("/sign-in", secure=True)
    assert answer.cookies["perch_csrf"]["secure"]


@pytest.mark.parametrize("cookie", ["", "x", "gAAAAAB" + "x" * 100, "\x00", "é"])
def test_a_forged_session_is_ignored(visitor: Browser, cookie: str) -> None:
    visitor.cookies["perch_session"] = cookie
    assert visitor.get("/").status_code == 302


def test_a_session_outlives_the_replacement_of_the_secret(
    alice: Person, stack: Stack, settings: Any
) -> None:
    mark = Page(alice.get("/new-project")).fields["signed_in_as"]
    key = stack.new_key()
    other = Browser()
    other.post("/sign-in", {"key": key})
    copied = Browser()
    copied.cookies = copy(other.cookies)
    other.post("/sign-out-everywhere")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret"
    # A page that was opened before goes on too.
    assert alice.get("/live", **{"HX-Request": "true", "Perch-Sign-In": mark}).status_code != 409
    assert alice.get("/", **{"Sec-Fetch-Mode": "navigate"}).status_code == 200
    # What has ended stays ended.
    assert copied.get("/").status_code == 302
    settings.SECRET_KEY_FALLBACKS = []
    assert alice.get("/").status_code == 302


def test_a_post_needs_the_forms_token(alice: Person) -> None:
    careful = Browser(enforce_csrf_checks=True)
    careful.cookies = alice.browser.cookies
    answer = careful.post("/new-project", {"name": "x"})
    assert answer.status_code == 403
    assert "Form expired" in answer.content.decode()


def test_an_unknown_host_name_is_refused_with_a_hint(visitor: Browser) -> None:
    answer = visitor.get("/sign-in", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 400
    assert b"PERCH_ALLOWED_HOSTS" in answer.content


@pytest.mark.parametrize("host", ["elsewhere.example", "a b", "x/y", "[::"])
def test_a_bad_host_name_is_one_log_line_without_a_traceback(
    visitor: Browser, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    written = io.StringIO()
    (handler,) = (one for one in logging.getLogger().handlers if one.get_name() == "stderr")
    monkeypatch.setattr(handler, "stream", written)
    assert visitor.get("/sign-in", headers={"Host": host}).status_code == 400
    said = [line for line in written.getvalue().splitlines() if "django.security" in line]
    assert len(said) == 1, written.getvalue()
    assert "level=WARNING" in said[0]
    assert "Invalid HTTP_HOST header" in said[0]
    assert "raceback" not in written.getvalue()


def test_a_bug_shows_a_page_without_a_traceback(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **named: Any) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("console.api.management_api.ManagementAPI.api_keys", broken)
    alice.browser.raise_request_exception = False
    answer = alice.get("/api-keys")
    assert answer.status_code == 500
    assert "Internal error" in answer.content.decode()
    assert "a secret detail" not in answer.content.decode()


def start(**environment: str) -> "subprocess.CompletedProcess[str]":
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    known["PERCH_CONSOLE_STATE_DIR"] = django_settings.STATE_DIR
    return subprocess.run(
        [sys.executable, "-c", "import console.wsgi"],
        cwd=ROOT,
        env=known | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_without_a_secret_it_does_not_start_and_gives_the_reason() -> None:
    failed = start()
    assert failed.returncode != 0
    assert "PERCH_SECRET_KEY is not set" in failed.stderr
    assert start(PERCH_SECRET_KEY="s").returncode == 0
    assert start(PERCH_DEBUG="1").returncode == 0


@pytest.mark.thorough
def test_the_console_uses_its_own_settings_beside_the_control_plane() -> None:
    started = start(PERCH_SECRET_KEY="s", DJANGO_SETTINGS_MODULE="controlplane.settings")
    assert started.returncode == 0, started.stderr


def test_a_form_of_another_site_is_refused(alice: Person) -> None:
    careful = Browser(enforce_csrf_checks=True)
    careful.cookies = alice.browser.cookies
    for origin in ("http://evil.example", "null", "http://testserver.evil.example"):
        headers = {"Origin": origin}
        answer = careful.post("/new-project", {"name": "x"}, headers=headers)
        assert answer.status_code == 403
        assert careful.post("/sign-out", headers=headers).status_code == 403
    assert alice.api.get("/projects")["projects"] == []


def test_an_outdated_form_of_the_console_comes_back_and_changes_nothing(alice: Person) -> None:
    careful = Browser(enforce_csrf_checks=True)
    careful.cookies = alice.browser.cookies
    headers = {"Origin": "http://testserver"}
    answer = careful.post("/new-project", {"name": "what I typed"}, headers=headers)
    assert answer.status_code == 422
    page = Page(answer)
    assert page.fields["name"] == "what I typed"
    assert "You have signed in again since this page was loaded" in page.text
    assert alice.api.get("/projects")["projects"] == []
    again = {"name": "what I typed", "csrfmiddlewaretoken": page.fields["csrfmiddlewaretoken"]}
    assert careful.post("/new-project", again, headers=headers).status_code == 302
