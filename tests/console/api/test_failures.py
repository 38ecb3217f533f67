"""What the console says when the API refuses, fails, is slow, is unreachable, or answers
invalidly."""

import gzip
import socket
import time
from typing import Any

import pytest

from console.api.bounded_http import environment_for
from console.api.errors import BrokenOff
from console.pages.problems import spell_out
from console.query.place import failure_words
from console.query.sql_over_http import SqlFailed
from console.templatetags.reasons import reason
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

FORMS = {
    "/new-project": {"name": "what I typed"},
    "/projects/p/rename": {"name": "what I typed"},
    "/projects/p/new-branch": {"name": "what I typed", "parent_id": "br-1"},
    "/projects/p/new-endpoint": {"branch_id": "br-1", "min_cu": "0.5"},
    "/projects/p/endpoints/e/reassign": {"branch_id": "br-1"},
    "/projects/p/endpoints/e/settings": {"max_cu": "2", "pg_settings": "work_mem = 1MB"},
    "/projects/p/endpoints/e/delete": {"typed": "e"},
    "/projects/p/branches/b/rename": {"name": "what I typed"},
    "/projects/p/branches/b/delete": {"typed": "b"},
    "/projects/p/branches/b/expiry": {"lifetime": "at", "until": "2999-01-31T12:00"},
    "/projects/p/branches/b/reset": {"preserve_under_name": "what I typed"},
    "/projects/p/branches/b/restore": {"source_id": "br-1", "preserve_under_name": "kept"},
    "/projects/p/branches/b/new-role": {"name": "what I typed"},
    "/projects/p/branches/b/role/password?name=r": {},
    "/projects/p/branches/b/role/new-password?name=r": {},
    "/projects/p/branches/b/role/delete?name=r": {},
    "/projects/p/branches/b/new-database": {"name": "what I typed", "owner_name": "r"},
    "/projects/p/branches/b/database/edit?name=d": {"name": "what I typed", "owner_name": "r"},
    "/projects/p/branches/b/database/delete?name=d": {"typed": "d"},
    "/projects/p/branches/b/new-snapshot": {"name": "what I typed", "lifetime": "3600"},
    "/projects/p/snapshots/s/edit": {"name": "what I typed", "lifetime": "3600"},
    "/projects/p/snapshots/s/restore": {"name": "what I typed", "target_id": ""},
    "/projects/p/snapshots/s/delete": {},
    "/projects/p/delete": {"typed": "p"},
    "/projects/p/operations/o/cancel": {},
    "/projects/p/chains/c/cancel": {},
    "/api-keys/new": {"name": "what I typed", "project_id": "p", "expires_at": "2999-01-31"},
    "/webhooks/new": {"url": "https://x.example", "description": "what I typed"},
    "/webhooks/w/rotate": {},
    "/webhooks/w/delete": {},
}
REFUSALS = {
    400: (400, "Invalid request"),
    403: (403, "This API key may not do that"),
    404: (404, "Not found"),
    409: (409, "Already exists"),
    418: (400, "The management API refused"),
    422: (422, "Not allowed"),
    423: (423, "Other operations are in progress"),
    429: (429, "Too many requests"),
    500: (502, "The management API failed"),
    503: (502, "The management API failed"),
}


@pytest.fixture
def bad_api(dave: Person, misbehaving: Misbehaving) -> Misbehaving:
    """The server that Dave's console asks."""
    return misbehaving


def test_it_works(dave: Person, bad_api: Misbehaving) -> None:
    bad_api.refuse(500, "the disk is full")
    answer = dave.get("/")
    assert answer.status_code == 502
    page = Page(answer)
    assert "The management API failed" in page.text
    assert "The disk is full" in page.text
    assert "req-1" in page.text
    assert "Try again" in page.text
    assert "Traceback" not in page.text


@pytest.mark.parametrize("status", REFUSALS)
def test_every_refusal_shows_a_page_with_a_link_out(
    dave: Person, bad_api: Misbehaving, status: int
) -> None:
    bad_api.refuse(status, "invalid request: <b>so it is</b>")
    # For any other page, test_outages looks for less.
    for path in ("/api-keys", "/projects/p", "/projects/p/branches/b", "/projects/p/endpoints/e"):
        answer = dave.get(path)
        page = Page(answer)
        own_status, words = REFUSALS[status]
        assert answer.status_code == own_status, path
        assert words in page.text
        assert "<b>so it is</b>" in page.text
        assert "<b>so it is</b>" not in page.html
        assert "All projects" in page.text


@pytest.mark.parametrize(
    "path", ["/projects/p/endpoints/e/start", "/projects/p/endpoints/e/pooling"]
)
def test_a_refused_button_shows_the_reason_in_place(
    dave: Person, bad_api: Misbehaving, path: str
) -> None:
    bad_api.refuse(423, "project already has running conflicting operations")
    answer = dave.post(path, {"next": "/api-keys", "to": "on"})
    assert answer["Location"] == "/api-keys"
    bad_api.status, bad_api.body = 200, b"[]"
    page = Page(dave.get("/api-keys"))
    assert "Other operations are in progress" in page.text
    assert "Nothing was changed" in page.text


def test_a_button_without_a_good_key_returns_to_its_page(
    dave: Person, bad_api: Misbehaving
) -> None:
    bad_api.refuse(401)
    own = "http://testserver/projects/p"
    answer = dave.post("/projects/p/endpoints/e/start", Referer=own)
    assert answer["Location"] == "/sign-in?next=%2Fprojects%2Fp"
    answer = dave.post("/projects/p/endpoints/e/start", Referer="http://evil.example/projects/p")
    assert answer["Location"] == "/sign-in?next=%2F"


def test_an_api_that_is_unreachable(dave: Person, settings: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings.MANAGEMENT_API_URL = f"http://127.0.0.1:{closed.getsockname()[1]}/api/v2"
        answer = dave.get("/")
        assert answer.status_code == 503
        assert "Cannot reach the management API" in Page(answer).text
        page = Page(dave.post("/new-project", {"name": "what I typed"}))
        assert "Cannot reach the management API" in page.text
        assert page.fields["name"] == "what I typed"


def test_an_address_is_written_as_it_is() -> None:
    """Even if a sentence begins with it."""
    assert "http://127.0.0.1" in spell_out(BrokenOff("http://127.0.0.1:9 closed the connection"))
    assert failure_words(SqlFailed("ep-x:5432 did not respond in time")).startswith("ep-x:5432 ")
    assert reason("http://[::1]:9 failed\nagain").plain == "http://[::1]:9 failed."


@pytest.mark.thorough
def test_an_api_that_is_slow(dave: Person, bad_api: Misbehaving, settings: Any) -> None:
    settings.MANAGEMENT_API_TIMEOUT = 0.2
    bad_api.may_answer.clear()
    answer = dave.get("/api-keys")
    assert answer.status_code == 504
    assert "did not respond in time" in Page(answer).text
    # No request was sent that could have made a change.
    assert "may still be made" not in Page(answer).text
    bad_api.asked.clear()
    page = Page(dave.post("/projects/p/new-branch", FORMS["/projects/p/new-branch"]))
    assert "The change may still be made" in page.text
    assert page.fields["name"] == "what I typed"
    # The form is neither sent twice, nor is there a second timeout to fill its choices.
    assert bad_api.asked == ["POST /api/v2/projects/p/branches"]


@pytest.mark.thorough
def test_an_api_that_sends_its_answer_byte_by_byte(
    dave: Person, bad_api: Misbehaving, settings: Any
) -> None:
    """Each byte arrives in time, but the answer does not end."""
    settings.MANAGEMENT_API_TIMEOUT = 0.5
    bad_api.pause = 0.1
    for bad_api.body, bad_api.headers in (
        (b" " * 100, {}),
        (b"{}", {f"X-{number}": "slow" for number in range(50)}),
    ):
        began = time.monotonic()
        assert dave.get("/api-keys").status_code == 504
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("packed", [False, True])
def test_an_api_that_answers_without_end(
    dave: Person, bad_api: Misbehaving, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr("console.api.bounded_http.MAX_RESPONSE_BYTES", 1 << 20)
    bad_api.body = b"[" + b" " * (1 << 20) + b"]"
    if packed:
        bad_api.body = gzip.compress(bad_api.body)
        bad_api.headers = {"Content-Encoding": "gzip"}
    answer = dave.get("/api-keys")
    assert answer.status_code == 502
    assert "The answer is longer than 1 MiB" in Page(answer).text


def test_the_key_is_not_sent_to_an_http_proxy(
    dave: Person, misbehaving: Misbehaving, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, misbehaving.url.removesuffix("/api/v2"))
    monkeypatch.setenv("no_proxy", "")
    # A console reads its environment once.
    environment_for.cache_clear()
    misbehaving.body = b"[]"
    assert dave.get("/api-keys").status_code == 200
    # The request goes directly to the server; a request to a proxy would have a full address.
    assert misbehaving.asked == ["GET /api/v2/api_keys"]
    misbehaving.asked.clear()
    for host in ("localhost", "api.localhost", "127.8.9.10", "[::1]", "0.0.0.0"):
        settings.MANAGEMENT_API_URL = f"http://{host}:9"
        assert dave.get("/api-keys").status_code == 503
    assert misbehaving.asked == []
    settings.MANAGEMENT_API_URL = "http://api.example/api/v2"
    assert dave.get("/api-keys").status_code == 200
    assert misbehaving.asked == ["GET http://api.example/api/v2/api_keys"]
    environment_for.cache_clear()


def test_a_redirect_is_not_followed_with_the_key(dave: Person, bad_api: Misbehaving) -> None:
    bad_api.refuse(302, Location=f"{bad_api.url}/elsewhere")
    assert dave.get("/").status_code == 502
    assert all("elsewhere" not in path for path in bad_api.asked)


def test_the_failure_of_one_project_does_not_affect_the_dashboard(
    dave: Person, bad_api: Misbehaving
) -> None:
    bad_api.body = b'{"projects": [{"id": "p", "name": "shop"}]}'
    assert "unknown" in Page(dave.get("/")).row("shop")


def test_a_problem_during_an_htmx_request_is_a_notice(dave: Person, bad_api: Misbehaving) -> None:
    bad_api.refuse(500, "the disk is full")
    answer = dave.htmx_get("/projects/p/rename", target="dialog", at="/projects/p")
    assert answer.status_code == 502
    assert answer["HX-Reswap"] == "none"
    assert 'hx-swap-oob="beforeend:#notices"' in answer.content.decode()
    assert "The disk is full" in Page(answer).text
