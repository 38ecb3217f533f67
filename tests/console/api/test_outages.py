"""Every address of the console during every kind of API outage. A page says what is wrong and has a
link out, a live region shows one line, a button gives one notice, and a form keeps what was typed.
The console itself never fails."""

import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.urls import URLPattern, get_resolver, reverse

from tests.console.api.test_failures import FORMS
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.selection import only

pytestmark = pytest.mark.slow

IDS = {
    "project_id": "p",
    "branch_id": "b",
    "endpoint_id": "e",
    "operation_id": "o",
    "chain_id": "c",
    "snapshot_id": "s",
    "webhook_id": "w",
    "host_id": "local",
    "delivery_id": "d",
    "key_id": 7,
}
QUERIES = dict.fromkeys(
    ("role_password", "role_reset", "role_delete", "database_edit", "database_delete"),
    "?name=neondb",
)
# Addresses that do not ask the API, or never end.
WITHOUT = ("switch", "sign_out", "sign_in", "sign_in_link", "changes", "project_changes")


def addresses(ids: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of everything that the console answers."""
    for pattern in get_resolver().url_patterns:
        assert isinstance(pattern, URLPattern)
        if pattern.name and pattern.name not in WITHOUT:
            own = {name: ids[name] for name in pattern.pattern.converters}
            yield pattern.name, reverse(pattern.name, kwargs=own) + QUERIES.get(pattern.name, "")


def refusing(status: int) -> Callable[[Misbehaving], None]:
    return lambda api: api.refuse(status, "no <i>way</i>")


def answering(body: bytes) -> Callable[[Misbehaving], None]:
    return lambda api: setattr(api, "body", body)


def half_way(api: Misbehaving) -> None:
    api.body = b'{"project": {"id": "p", "name": "sh'
    api.length = 1000


def html_with_502(api: Misbehaving) -> None:
    api.status, api.body = 502, b"<html>"


def slow(api: Misbehaving) -> None:
    api.may_answer.clear()


OUTAGES: dict[str, Callable[[Misbehaving], None]] = {
    **{str(status): refusing(status) for status in (400, 401, 403, 404, 405, 409, 410, 412)},
    **{str(status): refusing(status) for status in (418, 422, 423, 429, 500, 502, 503)},
    "HTML": answering(b"<!doctype html><title>Welcome to nginx!</title>"),
    "HTML with 502": html_with_502,
    "broken JSON": answering(b'{"project": {"id": "p"'),
    "nothing": answering(b""),
    "an empty object": answering(b"{}"),
    "a list": answering(b"[1, null]"),
    "numbers": answering(b'{"project": 1, "projects": 2, "branches": 3, "operations": 4}'),
    "closed half-way": half_way,
    "slow": slow,
}


# One of each kind: refused, unknown, failing, unreadable, broken off, unreachable.
USUAL = ("401", "404", "500", "HTML with 502", "broken JSON", "closed half-way", "away")


@pytest.fixture(params=only(USUAL, (*OUTAGES, "away")))
def outage(
    request: pytest.FixtureRequest, dave: Person, misbehaving: Misbehaving, settings: Any
) -> str:
    # Too slow for a page of several calls to wait for each of them.
    settings.MANAGEMENT_API_TIMEOUT = 0.1
    if request.param == "away":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            settings.MANAGEMENT_API_URL = f"http://127.0.0.1:{closed.getsockname()[1]}/api/v2"
    else:
        OUTAGES[request.param](misbehaving)
    return str(request.param)


def expect_page(answer: Any, name: str) -> None:
    """Check that the answer is something that a browser may show."""
    if answer.status_code in (302, 405):
        return
    page = Page(answer)
    assert answer.status_code != 500, name
    assert "Traceback" not in page.html, name
    assert "<i>way" not in page.html, name
    if answer["Content-Type"].startswith("text/html"):
        assert "<h1" in page.html, name
        assert 'href="/"' in page.html, name


def test_every_page_reports_the_outage(dave: Person, outage: str) -> None:
    for name, address in addresses(IDS):
        if not name.endswith("_live"):
            expect_page(dave.get(address), name)


def test_every_live_region_reports_the_outage(dave: Person, outage: str) -> None:
    for name, address in addresses(IDS):
        if not name.endswith("_live"):
            continue
        answer = dave.htmx_get(address, at="/projects/p")
        page = Page(answer)
        assert answer.status_code < 400, (name, answer.status_code)
        if answer.get("HX-Retarget") == "#poll":
            # In its one line, which says how to go on.
            assert page.html.count('role="alert"') == 1, name
            is_gone = answer["HX-Trigger"] == "perch:gone"
            words = "All projects" if is_gone else "Retrying|Sign in again"
            assert re.search(words, page.text), name
            assert answer["HX-Reswap"] == "morph", name
        else:
            assert 'id="live"' in page.html, name


@pytest.mark.thorough
def test_every_dialog_and_every_button_reports_the_outage(dave: Person, outage: str) -> None:
    for name, address in addresses(IDS):
        if name.endswith("_live"):
            continue
        answer = dave.htmx_get(address, target="dialog", at="/projects/p")
        if answer.status_code == 405:
            answer = dave.htmx_post(address, {"to": "on"}, at="/projects/p")
        assert answer.status_code != 500, name
        if answer.get("HX-Reswap") == "none":
            assert Page(answer).html.count('<div class="notice ') == 1, name
        # The message is on the page that the button leads to.
        dave.get("/shortcuts")


@pytest.mark.thorough
def test_every_form_keeps_what_was_typed(dave: Person, outage: str) -> None:
    for send in (dave.post, dave.htmx_post):
        for path, typed in FORMS.items():
            answer = send(path, typed)
            page = Page(answer)
            if 'id="form"' not in page.html:
                # An API that answers without content has accepted the form.
                assert outage in ("an empty object", "numbers", "a list"), (path, page.text)
                continue
            assert answer.status_code == 422, path
            for name, value in typed.items():
                assert page.fields[name].strip() == value, path
            assert 'role="alert"' in page.html, path


@pytest.mark.thorough
def test_every_live_page_has_an_address_for_its_region_alone(
    carol: Person, still_shop: Shop
) -> None:
    """The answer from there is put into the open page."""
    operation = still_shop.operations()[0]
    own = {
        "project_id": still_shop.id,
        "branch_id": still_shop.branch_id,
        "endpoint_id": still_shop.endpoint_id,
        "operation_id": operation["id"],
        "chain_id": operation["chain_id"],
        "key_id": carol.api.get("/api_keys")[0]["id"],
    }
    found = set()
    for name, address in addresses(IDS | own):
        html = carol.get(address).content.decode()
        for region in re.findall(r'<div id="live"[^>]* data-live="([^"]*)"', html):
            answer = carol.htmx_get(region.replace("&amp;", "&"), at=address).content.decode()
            assert answer.lstrip().startswith('<div id="live"'), name
            assert "<main" not in answer, name
            found.add(name)
    assert {"dashboard", "project", "endpoint", "branch", "endpoint_pg_settings"} <= found
