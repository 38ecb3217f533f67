"""Each tab keeps the sign-in with which it was opened."""

import json
import re
from typing import Any

import pytest

from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page
from tests.support.client import Client

OWN = "http://testserver"


class TestTabs:
    """All tabs share one cookie: a tab may show an account that another tab has left."""

    @pytest.fixture
    def tab(self, misbehaving: Misbehaving, settings: Any) -> Person:
        """Xena's page, after Yves has signed in in another tab. Sends what the page's scripts
        send."""
        settings.MANAGEMENT_API_URL = misbehaving.url
        settings.CSRF_TRUSTED_ORIGINS = [OWN]
        tab = Person(Browser(enforce_csrf_checks=True), Client(misbehaving.url, "y"))
        for name in ("xena", "yves"):
            misbehaving.body = json.dumps({"login": name}).encode()
            tab.post("/sign-in", {"key": name}, Origin=OWN)
            if name == "xena":
                misbehaving.body = b'{"projects": []}'
                self.html = tab.get("/").content.decode()
        misbehaving.body = b'{"project": {"id": "p"}, "projects": []}'
        misbehaving.asked.clear()
        return tab

    def sent(self, target: str = "live") -> dict[str, str]:
        """Return the headers of the requests from Xena's page."""
        (mark,) = re.findall(r'<body[^>]* hx-headers=.{"Perch-Sign-In":"(\w+)"}', self.html)
        return {
            "HX-Request": "true",
            "HX-Target": target,
            "Perch-Sign-In": mark,
            "Origin": OWN,
        }

    def test_a_page_of_another_sign_in_is_shown_nothing(
        self, tab: Person, misbehaving: Misbehaving
    ) -> None:
        answer = tab.get("/api-keys/7/revoke", **self.sent("dialog"))
        assert answer.status_code == 409
        assert "You are yves in another tab now" in Page(answer).text
        assert "csrfmiddlewaretoken" not in answer.content.decode()
        answer = tab.get("/live", **self.sent())
        assert answer["HX-Retarget"] == "#poll"
        assert "You are yves in another tab now" in Page(answer).text
        assert misbehaving.asked == []

    def test_a_page_of_another_sign_in_changes_nothing(
        self, tab: Person, misbehaving: Misbehaving
    ) -> None:
        # Even with a token of the present sign-in.
        token = Page(tab.get("/new-project")).fields["csrfmiddlewaretoken"]
        misbehaving.asked.clear()
        fields = {"csrfmiddlewaretoken": token}
        for path in ("/projects/p/endpoints/ep-a/start", "/api-keys/7/revoke", "/new-project"):
            answer = tab.post(path, fields, **self.sent("form"))
            assert answer.status_code == 409, path
            assert "You are yves in another tab now" in Page(answer).text
        # Copying a connection is not a request by htmx.
        answer = tab.post("/projects/p/endpoints/ep-a/connection-string", Origin=OWN)
        assert answer.status_code == 409
        assert answer.content.startswith(b"Nothing was copied")
        assert misbehaving.asked == []

    def test_a_form_of_another_sign_in_comes_back_to_be_confirmed(
        self, tab: Person, misbehaving: Misbehaving
    ) -> None:
        mark = self.sent()["Perch-Sign-In"]
        typed = {"name": "typed before", "signed_in_as": mark}
        page = Page(tab.post("/new-project", typed, **self.sent("form")))
        assert "You have signed in again" in page.text
        assert page.fields["name"] == "typed before"
        assert not [path for path in misbehaving.asked if path.startswith("POST")]
        answer = tab.post("/new-project", page.fields, **self.sent("form"))
        assert answer["HX-Redirect"] == "/projects/p"

    def test_a_new_sign_in_with_the_same_key_continues(
        self, tab: Person, misbehaving: Misbehaving
    ) -> None:
        misbehaving.body = b'{"login": "xena", "projects": []}'
        tab.post("/sign-in", {"key": "xena"}, Origin=OWN)
        tab.post("/sign-in", {"key": "xena"}, Origin=OWN)
        assert tab.get("/live", **self.sent()).status_code == 200

    def test_signing_out_from_such_a_page_is_refused_too(self, tab: Person) -> None:
        answer = tab.browser.post("/sign-out", headers={"Origin": OWN}, follow=True)
        assert "meanwhile signed in as yves" in Page(answer).text
        page = Page(tab.post("/sign-out-everywhere", Origin=OWN))
        assert "You have signed in again" in page.text
        assert tab.get("/").status_code == 200
