"""Signing in and out."""

import json
import os
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from console import turns
from console.sign_in import ended_sessions, sessions
from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page
from tests.support.stack import Stack


def test_it_works(visitor: Browser, stack: Stack) -> None:
    key = stack.new_key()
    answer = visitor.post("/sign-in", {"key": f"  {key}  "})
    assert answer.status_code == 302
    assert answer["Location"] == "/"
    page = Page(visitor.get("/"))
    assert "account-" in page.text
    assert "unlimited" in page.text


@pytest.mark.parametrize(
    "path", ["/", "/api-keys", "/projects/some-project-12345678?x=1", "/projects/a-b-1/operations"]
)
def test_every_other_page_asks_to_sign_in_first_and_returns(
    visitor: Browser, stack: Stack, path: str
) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 302
    page = Page(visitor.get(answer["Location"]))
    assert page.fields["next"] == path
    signed_in = visitor.post("/sign-in", {"key": stack.new_key(), "next": path})
    assert signed_in["Location"] == path


def test_a_fragment_asks_to_sign_in_and_leaves_the_page_unchanged(visitor: Browser) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/projects/a-b-1"}
    answer = visitor.get("/projects/a-b-1/rename", headers=headers)
    assert answer.status_code == 401
    assert answer["HX-Reswap"] == "none"
    assert "HX-Redirect" not in answer
    page = Page(answer)
    assert "You are not signed in" in page.text
    assert '<a href="/sign-in" target="_blank"' in page.html


def test_a_form_sent_after_signing_out_keeps_what_was_typed(alice: Person) -> None:
    alice.post("/sign-out")
    answer = alice.post("/new-project", {"name": "what I typed"})
    assert answer.status_code == 422
    page = Page(answer)
    assert page.fields["name"] == "what I typed"
    assert "You are not signed in" in page.text
    assert alice.api.get("/projects")["projects"] == []


def test_a_button_pressed_after_signing_out_does_nothing(alice: Person) -> None:
    alice.post("/sign-out")
    answer = alice.post("/projects/a-b-1/endpoints/ep-1/start")
    assert answer["Location"].startswith("/sign-in?next=")
    answer = alice.htmx_post("/projects/a-b-1/endpoints/ep-1/start")
    assert answer.status_code == 401
    assert "HX-Redirect" not in answer


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x"]
)
def test_it_returns_only_to_pages_of_the_console(
    visitor: Browser, stack: Stack, elsewhere: str
) -> None:
    answer = visitor.post("/sign-in", {"key": stack.new_key(), "next": elsewhere})
    assert answer["Location"] == "/"


@pytest.mark.usefixtures("stack")
def test_a_wrong_key_is_reported_beside_the_field_and_not_returned(visitor: Browser) -> None:
    answer = visitor.post("/sign-in", {"key": "not-a-key"})
    assert answer.status_code == 422
    page = Page(answer)
    assert "This API key is not valid" in page.text
    assert page.fields["key"] == ""
    assert visitor.get("/").status_code == 302


@pytest.mark.parametrize("key", ["", "two words", "clé", "a\tb"])
def test_a_value_that_cannot_be_a_key_is_not_sent(visitor: Browser, key: str) -> None:
    answer = visitor.post("/sign-in", {"key": key})
    assert answer.status_code == 422
    assert Page(answer).fields["key"] == ""


def test_a_revoked_key_cannot_sign_in(visitor: Browser, alice: Person) -> None:
    made = alice.api.post("/api_keys", {"key_name": "short-lived"})
    alice.api.delete(f"/api_keys/{made['id']}")
    answer = visitor.post("/sign-in", {"key": made["key"]})
    assert "This API key is not valid" in Page(answer).text


def test_a_key_revoked_later_asks_to_sign_in_again(alice: Person, visitor: Browser) -> None:
    made = alice.api.post("/api_keys", {"key_name": "short-lived"})
    visitor.post("/sign-in", {"key": made["key"]})
    assert visitor.get("/").status_code == 200
    alice.api.delete(f"/api_keys/{made['id']}")
    answer = visitor.get("/api-keys")
    assert answer["Location"] == "/sign-in?next=%2Fapi-keys"


def test_signing_out_removes_the_session(alice: Person) -> None:
    assert alice.browser.get("/sign-out").status_code == 405
    alice.post("/sign-out")
    assert alice.get("/").status_code == 302
    assert alice.api.key not in str(alice.browser.cookies)


def test_a_copy_of_the_cookie_is_invalid_after_signing_out(alice: Person, visitor: Browser) -> None:
    visitor.cookies["perch_session"] = alice.browser.cookies["perch_session"].value
    assert visitor.get("/").status_code == 200
    alice.post("/sign-out")
    assert visitor.get("/").status_code == 302
    assert visitor.post("/api-keys/new", {"name": "mine"}).status_code == 422
    assert len(alice.api.get("/api_keys")) == 1
    # A new sign-in begins another session, which continues.
    alice.post("/sign-in", {"key": alice.api.key})
    assert alice.get("/").status_code == 200


def test_signing_in_again_ends_the_previous_session(alice: Person, visitor: Browser) -> None:
    visitor.cookies["perch_session"] = alice.browser.cookies["perch_session"].value
    alice.post("/sign-in", {"key": alice.api.key})
    assert alice.get("/").status_code == 200
    assert visitor.get("/").status_code == 302


def test_every_process_of_the_console_knows_ended_sessions(
    stack: Stack, alice: Person, settings: Any
) -> None:
    """This test's process and the service's have the same secret and directory."""
    settings.SECRET_KEY = (stack.state_dir / "secret-key").read_text().strip()
    settings.STATE_DIR = str(stack.state_dir / "console")
    alice.post("/sign-in", {"key": alice.api.key})
    cookies = {"perch_session": alice.browser.cookies["perch_session"].value}

    def status() -> int:
        answer = requests.get(stack.console_url, cookies=cookies, allow_redirects=False, timeout=10)
        return answer.status_code

    assert status() == 200
    alice.post("/sign-out")
    assert status() == 302


def test_the_csrf_secret_changes_with_the_session(visitor: Browser, stack: Stack) -> None:
    secrets = [visitor.get("/sign-in").cookies["perch_csrf"].value]
    for path, form in (("/sign-in", {"key": stack.new_key()}), ("/sign-out", {})):
        secrets.append(visitor.post(path, form).cookies["perch_csrf"].value)
    assert len(set(secrets)) == 3


def test_ended_sessions_are_forgotten_with_their_cookies(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.STATE_DIR = str(tmp_path / "console")
    monkeypatch.setattr(ended_sessions, "_searched_at", time.monotonic())
    ended_sessions.end("old")
    (file,) = (tmp_path / "console").iterdir()
    week_ago = time.time() - settings.SESSION_COOKIE_AGE - 1
    os.utime(file, (week_ago, week_ago))
    # The directory may have many files, so it is not searched each time, and then with pauses.
    ended_sessions.end("new")
    assert ended_sessions.has_ended("old")
    monkeypatch.setattr(ended_sessions, "SEARCH_INTERVAL", 0)
    monkeypatch.setattr(turns, "MAX_WORK", 0)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    ended_sessions.end("new")
    assert len(pauses) == 2
    assert ended_sessions.has_ended("new")
    assert not ended_sessions.has_ended("old")
    assert len(list((tmp_path / "console").iterdir())) == 1


@pytest.mark.parametrize("kind", ["link", "open to all"])
def test_a_directory_of_another_user_is_refused(settings: Any, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "link":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        place.chmod(0o777)
    settings.STATE_DIR = str(place)
    with pytest.raises(ImproperlyConfigured, match="PERCH_CONSOLE_STATE_DIR"):
        ended_sessions.prepare()


def test_a_typed_key_is_kept_when_the_api_fails(
    visitor: Browser, settings: Any, misbehaving: Misbehaving
) -> None:
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.refuse(500, "out of memory")
    page = Page(visitor.post("/sign-in", {"key": "abc"}))
    assert "The management API failed. Out of memory" in page.text
    assert page.fields["key"] == "abc"


def test_an_organizations_key_can_sign_in(
    visitor: Browser, settings: Any, misbehaving: Misbehaving
) -> None:
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.refuse(403, "not allowed for organization API keys")
    answer = visitor.post("/sign-in", {"key": "abc"})
    assert answer.status_code == 422
    assert "GET /api/v2/projects?limit=1" in misbehaving.asked


def test_the_features_of_a_server_are_detected_at_sign_in(
    visitor: Browser, settings: Any, misbehaving: Misbehaving
) -> None:
    """Another server of this API has no events and no webhooks."""
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.body = b'{"login": "eve", "projects": [], "events": [], "webhooks": []}'
    visitor.post("/sign-in", {"key": "abc"})
    assert {"Activity", "Webhooks"} <= set(Page(visitor.get("/")).text.split())
    misbehaving.body = b'{"login": "eve", "projects": []}'
    visitor.post("/sign-in", {"key": "abc"})
    assert not {"Activity", "Webhooks"} & set(Page(visitor.get("/")).text.split())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test changes. Nobody has signed in."""
    monkeypatch.setattr(sessions, "_restored_at", {})
    time_now = [1e9]
    monkeypatch.setattr(time, "monotonic", lambda: time_now[0])
    return time_now


def test_a_key_cannot_sign_in_without_end(
    visitor: Browser, settings: Any, misbehaving: Misbehaving, now: list[float]
) -> None:
    """Each sign-in that ends leaves a file in the console's state directory."""
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.body = b'{"login": "mallory", "projects": []}'
    for _ in range(sessions.MAX_SIGN_INS_OF_KEY):
        assert sessions._may_begin(sessions.SignIn("abc", sessions.Account()))
    answer = visitor.post("/sign-in", {"key": "abc"})
    assert answer.status_code == 422
    assert "signed in too often" in Page(answer).text
    assert visitor.get("/").status_code == 302
    now[0] += sessions.SIGN_IN_INTERVAL
    assert visitor.post("/sign-in", {"key": "abc"}).status_code == 302
    assert visitor.post("/sign-in", {"key": "abc"}).status_code == 422


def test_a_key_locks_no_other_key_of_its_account_out(now: list[float]) -> None:
    whole = sessions.Account(name="m", is_perch=True)
    limited = (replace(whole, project_id="a-b-1"), replace(whole, read_only=True))

    def begun(key: str, account: sessions.Account) -> bool:
        return sessions._may_begin(sessions.SignIn(key, account))

    for number in range(20):
        for _ in range(sessions.MAX_SIGN_INS_OF_KEY):
            assert begun(f"limited {number}", limited[number % 2])
    assert not begun("limited 0", limited[0])
    # Those that can make keys are counted together.
    for number in range(sessions.MAX_SIGN_INS):
        assert begun(f"whole {number}", whole)
    assert not begun("another", whole)
    assert begun("another", replace(whole, name="n"))
    assert begun("new", limited[0])


def test_of_many_sign_ins_the_latest_are_remembered(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_REMEMBERED", 4)
    monkeypatch.setattr(sessions, "MAX_SIGN_INS_OF_KEY", 1)

    def begun(key: str) -> bool:
        return sessions._may_begin(sessions.SignIn(key, sessions.Account(read_only=True)))

    assert all(begun(key) for key in "abcde")
    assert [begun(key) for key in "edcb"] == [False] * 4
    assert len(sessions._restored_at) == 4
    # Those whose time has passed go first.
    now[0] += sessions.SIGN_IN_INTERVAL
    assert begun("f")
    assert len(sessions._restored_at) == 1


def test_accounts_of_long_names_are_counted_apart(now: list[float]) -> None:
    """A name has up to 64 characters."""
    request: Any = RequestFactory().get("/")
    request.session = sessions.SessionStore()
    for end in "ab":
        account = sessions.Account(name="n" * 63 + end, is_perch=True)
        assert sessions.sign_in(request, key=end, account=account)
    one, other = sessions.sign_ins(request)
    assert one.whose != other.whose


def test_a_one_time_link_is_not_refused_after_many_sign_ins(
    visitor: Browser,
    settings: Any,
    tmp_path: Path,
    misbehaving: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator has made it."""
    settings.STATE_DIR, settings.MANAGEMENT_API_URL = str(tmp_path), misbehaving.url
    misbehaving.body = b'{"login": "dave", "projects": []}'
    monkeypatch.setattr(sessions, "_may_begin", lambda new: False)
    assert visitor.post("/sign-in", {"key": "k"}).status_code == 422
    (tmp_path / "links").mkdir()
    file = tmp_path / "links" / sha256(b"x").hexdigest()
    file.touch(mode=0o600)
    file.write_text(json.dumps({"key": "k", "until": time.time() + 60}))
    assert visitor.post("/sign-in/link", {"code": "x"}).status_code == 302


def test_a_one_time_link_stays_valid_while_the_api_does_not_answer(
    visitor: Browser, settings: Any, tmp_path: Path, misbehaving: Misbehaving
) -> None:
    settings.STATE_DIR, settings.MANAGEMENT_API_URL = str(tmp_path), misbehaving.url
    (tmp_path / "links").mkdir()
    file = tmp_path / "links" / sha256(b"x").hexdigest()

    def answer_of(status: int, body: bytes) -> Any:
        misbehaving.status, misbehaving.body = status, body
        return visitor.post("/sign-in/link", {"code": "x"})

    file.touch(mode=0o600)
    file.write_text(json.dumps({"key": "k", "until": time.time() + 60}))
    answer = answer_of(503, b'{"message": "being started"}')
    assert answer.status_code == 502
    assert "Being started" in Page(answer).text
    assert Page(answer).fields["code"] == "x"
    assert answer_of(200, b'{"login": "dave"}').status_code == 302
    assert answer_of(200, b'{"login": "dave"}').status_code == 410
    # A key that is invalid now makes the link invalid.
    file.touch(mode=0o600)
    file.write_text(json.dumps({"key": "k", "until": time.time() + 60}))
    assert answer_of(401, b'{"message": "no such key"}').status_code == 410
    assert not file.exists()
