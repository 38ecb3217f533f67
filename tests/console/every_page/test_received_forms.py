"""What the console reads of a request whose sender it does not know."""

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import QueryDict
from django.http.multipartparser import MultiPartParser

from console.sign_in import sessions
from tests.console.browser import URL_ENCODED, Browser
from tests.console.pages import Page

MULTIPART = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each form that was parsed."""
    found: list[int] = []
    parse_parts, parse_fields = MultiPartParser.parse, QueryDict.__init__

    def parts(self: Any) -> Any:
        found.append(self._content_length)
        return parse_parts(self)

    def fields(self: Any, text: Any = None, *args: Any, **named: Any) -> None:
        if text:
            found.append(len(text))
        parse_fields(self, text, *args, **named)

    monkeypatch.setattr(MultiPartParser, "parse", parts)
    monkeypatch.setattr(QueryDict, "__init__", fields)
    return found


@pytest.fixture
def known(settings: Any) -> Browser:
    """The browser of a user who is signed in, at an API that does not answer."""
    settings.MANAGEMENT_API_URL = "http://127.0.0.1:9/api/v2"
    sign_in, session = (
        sessions.SignIn("key", sessions.Account(is_perch=True)),
        sessions.SessionStore(),
    )
    session.update({sessions.SIGN_INS: [sign_in], sessions.PRESENT: sign_in.id})
    session.save()
    browser = Browser()
    browser.cookies[settings.SESSION_COOKIE_NAME] = session.session_key or ""
    return browser


@pytest.mark.parametrize("path", ["/sign-in", "/sign-in/link", "/switch", "/", "/new-project"])
@pytest.mark.parametrize("body", [b"--x\n" * 20_000, PART * 15_000])
def test_multipart_is_refused_unparsed_where_no_file_is_expected(
    visitor: Browser, known: Browser, parsed: list[int], path: str, body: bytes
) -> None:
    for browser in (visitor, known):
        answer = browser.post(path, body, MULTIPART)
        assert answer.status_code == 415
        assert "Reload the page and send the form again" in Page(answer).text
    assert parsed == []


@pytest.mark.parametrize("path", ["/nowhere", "/static/nothing.css", "/healthz"])
@pytest.mark.parametrize("kind", [MULTIPART, URL_ENCODED])
def test_a_form_to_no_page_is_not_parsed(
    visitor: Browser, parsed: list[int], path: str, kind: str
) -> None:
    assert visitor.post(path, PART * 100, kind).status_code in (200, 404)
    assert parsed == []


@pytest.mark.parametrize("path", ["/sign-in", "/sign-in/link", "/sign-out"])
@pytest.mark.parametrize("body", [b"key=" + b"%41" * 10_000, b"a=&" * 101])
def test_a_page_for_everyone_receives_small_forms_only(
    visitor: Browser, known: Browser, parsed: list[int], path: str, body: bytes
) -> None:
    for browser in (visitor, known):
        answer = browser.post(path, body, URL_ENCODED)
        assert answer.status_code == 413
        assert "at most 16 KiB and 100 fields" in Page(answer).text
    assert parsed == []


@pytest.mark.parametrize("body", [b"sql=" + b"%41" * 10_000, b"a=&" * 101])
def test_only_who_is_signed_in_may_send_a_large_form(
    visitor: Browser, known: Browser, parsed: list[int], body: bytes
) -> None:
    answer = visitor.post("/projects/p/query", body, URL_ENCODED)
    assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/sign-in")
    assert parsed == []
    assert known.post("/projects/p/query", body, URL_ENCODED).status_code not in (302, 413)
    assert parsed == [len(body)]


def test_only_the_form_of_a_row_has_thousands_of_fields(known: Browser) -> None:
    many, too_many = b"a=&" * 4_000, b"a=&" * 5_001
    assert known.post("/projects/p/query", many, URL_ENCODED).status_code == 413
    assert known.post("/projects/p/tables/row?table=x", many, URL_ENCODED).status_code != 413
    assert known.post("/projects/p/tables/row?table=x", too_many, URL_ENCODED).status_code == 413


@pytest.mark.parametrize("body", [b"--x\n" * 101, PART * 101])
def test_a_form_with_a_file_has_few_parts(
    known: Browser, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Also parts without a name, which Django does not count."""
    parsed: list[Any] = []
    monkeypatch.setattr(
        "django.http.multipartparser.parse_boundary_stream", lambda *given: parsed.append(given)
    )
    answer = known.post("/projects/p/tables/import?table=x", body, MULTIPART)
    assert answer.status_code == 413
    assert parsed == []


def test_a_form_with_a_file_arrives(known: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[tuple[str, bytes]] = []
    monkeypatch.setattr(
        "console.query.table_imports.ImportForm",
        lambda post, files: arrived.append((post["zone"], files["file"].read())),
    )
    known.raise_request_exception = False
    file = SimpleUploadedFile("rows.csv", b"id\n" * 1_000_000)
    known.post("/projects/p/tables/import?table=x", {"zone": "UTC", "file": file})
    assert arrived == [("UTC", b"id\n" * 1_000_000)]
