"""The console with a server that is generated from Neon's public OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, get_resolver, reverse

from console import client_address
from console.api.transport import Server, Transport
from tests.console.browser import Browser
from tests.console.pages import Page
from tests.selection import only
from tests.support.neon_document import KINDS, Answers, serving

pytestmark = pytest.mark.slow

ID = "quiet-heron-12345678"
# Resources that this API lacks or does not have under that name. The console says so.
NOT_THERE = (
    *("account_activity", "project_activity", "query", "table", "status", "host", "webhook", "run"),
    *("branch_history", "branch_mask", "branch_attestation"),
    # Only later versions of the API have these.
    *("endpoint_connect", "endpoint_pg_settings", "endpoint_sessions", "snapshot"),
    # These are named by a parameter that is not given here.
    *("database", "role"),
)
IS_FOR_POST = 405


def pages() -> Iterator[tuple[str, str]]:
    for pattern in get_resolver().url_patterns:
        assert isinstance(pattern, URLPattern)
        arguments = {name: 3 if name == "key_id" else ID for name in pattern.pattern.converters}
        if isinstance(pattern, URLPattern) and pattern.name and pattern.name != "bundle":
            yield pattern.name, reverse(pattern.name, kwargs=arguments)


@pytest.mark.parametrize("kind", only({"unforeseen"}, KINDS))
def test_no_page_fails(kind: str, settings: Any) -> None:
    failed = []
    with serving(Answers(kind)) as url:
        settings.MANAGEMENT_API_URL = url
        browser = Browser()
        assert browser.post("/sign-in", {"key": "a-key"}).status_code == 302
        for name, path in pages():
            for headers in (
                {},
                {"HX-Request": "true", "HX-Current-URL": f"http://testserver{path}"},
            ):
                answer = browser.get(path, headers=headers)
                if answer.status_code in (200, 302, IS_FOR_POST):
                    continue
                # An empty list contains no branch.
                is_none = kind == "empty" and name.startswith("branch")
                if answer.status_code == 404 and (name.startswith(NOT_THERE) or is_none):
                    continue
                if name in ("sign_in_link",) and answer.status_code == 410:
                    continue
                failed.append((name, answer.status_code, Page(answer).text[:300]))
    assert not failed, "\n".join(map(str, failed))


def test_only_the_consoles_own_service_gets_the_signature_of_an_address() -> None:
    with client_address.client_context("192.0.2.7"):
        own, other = (
            Transport("a-key", Server(name, "http://api"))._request("GET", ["x"]).headers
            for name in ("", "another")
        )
    assert own["Perch-Client-Address"].startswith("192.0.2.7 ")
    assert "Perch-Client-Address" not in other
