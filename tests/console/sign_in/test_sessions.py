"""Several sign-ins in one session, signing out everywhere, and idle sessions."""

import json
import re
import time
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from console.settings import envnamed
from console.sign_in import sessions
from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.stack import Stack

COOKIE = "perch_session"


def sign_in(browser: Browser, key: str, **fields: str) -> Any:
    return browser.post("/sign-in", {"key": key, **fields})


def name_of(browser: Browser) -> str:
    """Return the name of the signed-in user on the dashboard."""
    found = re.search(r'<span class="who"[^>]*>(\S+?)[ <]', browser.get("/").content.decode())
    assert found
    return found[1]


def others(browser: Browser, path: str = "/") -> list[str]:
    """Return the ids of the sign-ins to which the user may switch."""
    return re.findall(r'name="sign_in" value="([^"]+)"', browser.get(path).content.decode())


class TestSeveralSignIns:
    def test_it_works(self, visitor: Browser, stack: Stack) -> None:
        sign_in(visitor, stack.new_key())
        first = name_of(visitor)
        sign_in(visitor, stack.new_key())
        second = name_of(visitor)
        assert first != second
        (other,) = others(visitor)
        assert visitor.post("/switch", {"sign_in": other}).status_code == 302
        assert name_of(visitor) == first
        assert f"Switch to {second}" in Page(visitor.get("/")).text

    def test_the_same_key_is_one_sign_in(self, visitor: Browser, stack: Stack) -> None:
        key = stack.new_key()
        sign_in(visitor, key)
        sign_in(visitor, key)
        assert others(visitor) == []

    def test_signing_out_continues_with_another_sign_in(
        self, visitor: Browser, stack: Stack
    ) -> None:
        sign_in(visitor, stack.new_key())
        first = name_of(visitor)
        sign_in(visitor, stack.new_key())
        visitor.post("/sign-out")
        assert visitor.get("/").status_code == 302
        page = Page(visitor.get("/sign-in"))
        assert f"Continue as {first}" in page.text
        (other,) = others(visitor, "/sign-in")
        visitor.post("/switch", {"sign_in": other})
        assert name_of(visitor) == first

    def test_all_sign_ins_of_this_browser_are_signed_out_at_once(
        self, visitor: Browser, stack: Stack
    ) -> None:
        sign_in(visitor, stack.new_key())
        sign_in(visitor, stack.new_key())
        copy = Browser()
        copy.cookies[COOKIE] = visitor.cookies[COOKIE].value
        visitor.post("/sign-out", {"which": "all"})
        for browser in (visitor, copy):
            assert browser.get("/").status_code == 302
            assert others(browser, "/sign-in") == []

    def test_switching_to_an_unknown_sign_in_is_refused(
        self, visitor: Browser, stack: Stack
    ) -> None:
        sign_in(visitor, stack.new_key())
        name = name_of(visitor)
        answer = visitor.post("/switch", {"sign_in": "x"}, follow=True)
        assert "This session has ended" in Page(answer).text
        assert name_of(visitor) == name

    def test_a_form_from_before_the_switch_is_out_of_date(self, stack: Stack) -> None:
        browser = Browser(enforce_csrf_checks=True)
        for _ in range(2):
            form = Page(browser.get("/sign-in"))
            token = form.fields["csrfmiddlewaretoken"]
            sign_in(browser, stack.new_key(), csrfmiddlewaretoken=token)
        token = Page(browser.get("/new-project")).fields["csrfmiddlewaretoken"]
        (other,) = others(browser)
        browser.post("/switch", {"sign_in": other, "csrfmiddlewaretoken": token})
        answer = browser.post("/new-project", {"name": "x", "csrfmiddlewaretoken": token})
        assert answer.status_code == 403

    def test_the_oldest_sign_in_is_dropped_when_the_cookie_is_full(
        self, visitor: Browser, settings: Any, misbehaving: Misbehaving
    ) -> None:
        settings.MANAGEMENT_API_URL = misbehaving.url
        misbehaving.body = json.dumps({"login": "x" * 500, "plan": "y" * 500}).encode()
        for number in range(12):
            sign_in(visitor, f"{number}" * 64)
            assert len(visitor.cookies[COOKIE].value) < 3900
        misbehaving.body = b'{"projects": []}'
        assert 3 <= len(others(visitor)) < 11


class TestServers:
    @pytest.fixture
    def staging(self, misbehaving: Misbehaving, settings: Any, stack: Stack) -> Misbehaving:
        settings.OTHER_SERVERS = {"staging": misbehaving.url}
        misbehaving.body = b'{"login": "sam", "projects": []}'
        return misbehaving

    def test_it_works(self, visitor: Browser, stack: Stack, staging: Misbehaving) -> None:
        assert Page(visitor.get("/sign-in")).options["server"] == ["", "staging"]
        sign_in(visitor, "sams-key", server="staging")
        assert name_of(visitor) == "sam"
        assert "staging" in Page(visitor.get("/")).text
        sign_in(visitor, stack.new_key())
        assert name_of(visitor) != "sam"
        asked = len(staging.asked)
        visitor.get("/")
        assert len(staging.asked) == asked
        visitor.post("/switch", {"sign_in": others(visitor)[0]})
        assert name_of(visitor) == "sam"

    @pytest.mark.usefixtures("staging")
    @pytest.mark.parametrize("server", ["http://127.0.0.1:1/api/v2", "prod", "staging "])
    def test_a_user_cannot_name_a_server(
        self, visitor: Browser, staging: Misbehaving, server: str
    ) -> None:
        answer = sign_in(visitor, "a-key", server=server)
        assert (answer.status_code, "key" in answer.context["form"].errors) in (
            (422, False),
            (422, True),
        )
        assert staging.asked == []

    def test_a_server_that_is_no_longer_configured_gets_no_request(
        self, visitor: Browser, settings: Any, staging: Misbehaving
    ) -> None:
        sign_in(visitor, "sams-key", server="staging")
        asked = len(staging.asked)
        settings.OTHER_SERVERS = {}
        assert visitor.get("/").status_code == 302
        assert len(staging.asked) == asked

    def test_without_other_servers_there_is_no_choice(self, visitor: Browser) -> None:
        assert "server" not in Page(visitor.get("/sign-in")).options

    def test_an_invalid_list_of_servers_is_an_error_for_the_operator(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("X", "a=https://a.example/api/v2/, b=http://b.example")
        assert envnamed("X") == {"a": "https://a.example/api/v2", "b": "http://b.example"}
        for wrong in ("https://a.example", "a=ftp://x", "=https://x", "a=https://x,a=https://y"):
            monkeypatch.setenv("X", wrong)
            with pytest.raises(ImproperlyConfigured, match="X: "):
                envnamed("X")


class TestSignOutEverywhere:
    def test_signing_out_everywhere_needs_a_valid_sign_in(self, dave: Person) -> None:
        kept = Browser()
        kept.cookies[COOKIE] = dave.browser.cookies[COOKIE].value
        dave.post("/sign-out")
        answer = kept.post("/sign-out-everywhere")
        assert answer.status_code == 422
        assert "You are not signed in" in Page(answer).text

    def test_a_sign_out_that_cannot_be_stored_is_reported(
        self, dave: Person, settings: Any, tmp_path: Path
    ) -> None:
        elsewhere = Browser()
        elsewhere.post("/sign-in", {"key": dave.api.key})
        (tmp_path / "place").mkdir(mode=0o777)
        (tmp_path / "place").chmod(0o777)
        settings.STATE_DIR = str(tmp_path / "place")
        page = Page(dave.browser.post("/sign-out-everywhere", follow=True))
        assert "Other browsers may still be signed in" in page.text
        assert "are signed out." not in page.text
        assert dave.get("/").status_code == 302

    def test_it_works(self, visitor: Browser, stack: Stack) -> None:
        key, other = stack.new_key(), stack.new_key()
        elsewhere, stranger = Browser(), Browser()
        for browser in (visitor, elsewhere):
            sign_in(browser, key)
        sign_in(stranger, other)
        assert "Signs out every browser" in Page(visitor.get("/sign-out-everywhere")).text
        visitor.post("/sign-out-everywhere")
        assert [one.get("/").status_code for one in (visitor, elsewhere, stranger)] == [
            302,
            302,
            200,
        ]
        # The key stays valid.
        sign_in(visitor, key)
        assert visitor.get("/").status_code == 200
        assert elsewhere.get("/").status_code == 302

    def test_the_stored_record_does_not_reveal_the_key(
        self, visitor: Browser, stack: Stack
    ) -> None:
        from django.conf import settings

        key = stack.new_key()
        sign_in(visitor, key)
        visitor.post("/sign-out-everywhere")
        names = {path.name for path in Path(settings.STATE_DIR).iterdir()}
        assert not {sha256(text.encode()).hexdigest() for text in (key, f" {key}")} & names


class TestIdleSessions:
    def age(self, browser: Browser, seconds: float) -> None:
        """Make the cookie as old as this."""
        fernet = sessions._fernet()
        token = browser.cookies[COOKIE].value
        older = int(time.time() - seconds)
        browser.cookies[COOKIE] = fernet.encrypt_at_time(
            fernet.decrypt(token.encode()), older
        ).decode()

    def test_a_session_ends_after_the_configured_time(
        self, visitor: Browser, stack: Stack, settings: Any
    ) -> None:
        settings.SESSION_COOKIE_AGE = 3600
        sign_in(visitor, stack.new_key())
        self.age(visitor, 3500)
        assert visitor.get("/").status_code == 200
        # Opening a page starts the time anew.
        token = visitor.cookies[COOKIE].value.encode()
        age = time.time() - sessions._fernet().extract_timestamp(token)
        assert age < 60
        self.age(visitor, 3700)
        assert visitor.get("/").status_code == 302

    def test_a_slow_answer_does_not_overwrite_a_newer_cookie(
        self, dave: Person, misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another tab may have switched, signed in or signed out meanwhile."""
        misbehaving.body = b'{"projects": []}'
        self.age(dave.browser, 7200)
        monkeypatch.setattr("console.middleware.MAX_RENEWAL_SECONDS", 0.0)
        assert COOKIE not in dave.get("/").cookies
        # Neither does an answer that shows a message, or finds that a sign-in has ended.
        dave.post("/switch", {"sign_in": "x"})
        answer = dave.get("/sign-in")
        assert "This session has ended" in Page(answer).text
        assert COOKIE not in answer.cookies
        assert "This session has ended" not in Page(dave.get("/sign-in")).text
        kept = Browser()
        kept.cookies[COOKIE] = dave.browser.cookies[COOKIE].value
        dave.post("/sign-out")
        assert COOKIE not in kept.get("/sign-in").cookies

    def test_a_page_that_was_left_open_does_not_extend_the_session(
        self, alice: Person, shop: Shop
    ) -> None:
        self.age(alice.browser, 7200)
        before = alice.browser.cookies[COOKIE].value
        alice.htmx_get(f"{shop.url}/live")
        alice.get("/", **{"Sec-Fetch-Mode": "cors"})
        assert alice.browser.cookies[COOKIE].value == before
        alice.htmx_get("/new-project", target="dialog")
        assert alice.browser.cookies[COOKIE].value != before


class TestPreferences:
    def test_it_works(self, visitor: Browser) -> None:
        visitor.post("/preferences", {"theme": "dark", "next": "/sign-in"})
        html = visitor.get("/sign-in").content.decode()
        assert '<html lang="en" data-theme="dark">' in html
        assert 'data-shortcuts="off"' in html
        visitor.post("/preferences", {"theme": "", "shortcuts": "on"})
        html = visitor.get("/sign-in").content.decode()
        assert "data-theme" not in html
        assert "data-shortcuts" not in html

    def test_it_returns_only_to_pages_of_the_console(self, visitor: Browser) -> None:
        sent = {"theme": "dark", "next": "/a\nb"}
        answer = visitor.post("/preferences", sent, headers={"HX-Request": "true"})
        assert answer["HX-Redirect"] == "/a%0Ab"

    def test_an_unknown_theme_is_ignored(self, visitor: Browser) -> None:
        assert visitor.post("/preferences", {"theme": '"><script>'}).status_code == 422
        visitor.cookies["perch_theme"] = "x y"
        assert b"data-theme" not in visitor.get("/sign-in").content


class TestKeyLimits:
    def key(self, person: Person, **limits: Any) -> Person:
        made = person.api.post("/api_keys", {"key_name": "limited", **limits})
        limited = Person(Browser(), person.api)
        sign_in(limited.browser, made["key"])
        return limited

    def test_a_read_only_key_is_warned_before_filling_in_a_form(
        self, carol: Person, still_shop: Shop
    ) -> None:
        reader = self.key(carol, read_only=True)
        page = Page(reader.get(f"{still_shop.url}/rename"))
        assert "You are signed in with a read-only API key" in page.text
        assert "name" not in page.fields
        assert '<body class="read-only"' in page.html
        assert "read only" in page.text

    def test_a_key_of_one_project_is_warned_too(self, carol: Person, still_shop: Shop) -> None:
        limited = self.key(carol, project_id=still_shop.id)
        for path in ("/new-project", f"{still_shop.url}/delete"):
            page = Page(limited.get(path))
            assert f"a key that is limited to the project {still_shop.id}" in page.text, path
        assert "name" in Page(limited.get(f"{still_shop.url}/rename")).fields


@pytest.mark.parametrize(
    ("peer", "scheme", "is_secure"),
    [("10.0.0.1", "https", True), ("10.0.0.1", "http", False), ("10.0.0.1", "", False),
     ("192.0.2.1", "https", False)],
)  # fmt: skip
def test_cookies_are_secure_if_a_trusted_proxy_says_that_the_browser_used_tls(
    carol: Person, settings: Any, peer: str, scheme: str, is_secure: bool
) -> None:
    settings.TRUSTED_PROXIES = [ip_network("10.0.0.0/8")]
    headers = {"X-Forwarded-Proto": scheme} if scheme else {}
    browser = Browser(REMOTE_ADDR=peer, headers=headers)
    answer = sign_in(browser, carol.api.key)
    assert bool(answer.cookies[COOKIE]["secure"]) == is_secure
