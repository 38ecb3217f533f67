"""Keys with limits: creating and listing them, and the console of a user who signs in with one."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page

TOMORROW = datetime.now(UTC).date() + timedelta(days=1)


def new_key(person: Person, **fields: Any) -> str:
    """Create a key at the console, as a user does."""
    answer = person.post("/api-keys/new", {"name": "limited", **fields})
    assert answer.status_code == 200, Page(answer).text
    found = re.search(r"<code>(\S{20,})</code>", answer.content.decode())
    assert found
    return found[1]


def test_it_works(carol: Person, still_shop: Shop) -> None:
    form = Page(carol.get("/api-keys/new"))
    assert form.options["project_id"] == ["", still_shop.id]
    # Carol's other keys are of other tests, which may have run before.
    limits = {"project_id": still_shop.id, "read_only": "on", "expires_at": str(TOMORROW)}
    new_key(carol, name="of one project", **limits)
    row = Page(carol.get("/api-keys")).row("of one project")
    assert f"Project {still_shop.id} read only" in row
    assert f"{TOMORROW + timedelta(days=1)} 00:00:00 UTC" in row
    assert "never" in row
    assert "All projects" in Page(carol.get("/api-keys")).row("tests")


def test_a_key_expires_at_the_end_of_a_day_of_its_reader(carol: Person) -> None:
    carol.browser.cookies["perch_zone"] = "America/New_York"
    try:
        assert "Expires after (America/New_York)" in Page(carol.get("/api-keys/new")).text
        new_key(carol, name="until summer", expires_at="2999-07-31")
        row = Page(carol.get("/api-keys")).row("until summer")
    finally:
        carol.browser.cookies["perch_zone"] = ""
    assert "2999-08-01 00:00:00" in row


def test_an_invalid_day_stays_in_the_form(carol: Person) -> None:
    for typed in ("soon", "9999-12-31", "2020-01-01"):
        answer = carol.post("/api-keys/new", {"name": "x", "expires_at": typed})
        assert answer.status_code == 422
        assert list(answer.context["form"].errors) == ["expires_at"], typed
        assert Page(answer).fields["expires_at"] == typed


def test_a_key_of_one_project_leads_to_that_project(carol: Person, still_shop: Shop) -> None:
    visitor = Person(Browser(), carol.api)
    key = new_key(carol, project_id=still_shop.id)
    assert visitor.post("/sign-in", {"key": key})["Location"] == still_shop.url
    page = Page(visitor.get(still_shop.url))
    assert "Active" in page.text
    assert "API keys" not in page.text
    assert still_shop.id in Page(visitor.get("/")).text
    answer = visitor.get("/api-keys")
    assert answer.status_code == 403
    page = Page(answer)
    assert f'limited to the project "{still_shop.id}"' in page.text
    assert "Sign in with another key" in page.text
    asked_for = visitor.post("/sign-in", {"key": key, "next": f"{still_shop.url}/operations"})
    assert asked_for["Location"] == f"{still_shop.url}/operations"


def test_a_read_only_key_sees_everything_and_refusals_have_a_reason(
    carol: Person, still_shop: Shop
) -> None:
    reader = Person(Browser(), carol.api)
    assert reader.post("/sign-in", {"key": new_key(carol, read_only="on")})["Location"] == "/"
    for path in ("/", "/api-keys", still_shop.url, still_shop.endpoint_url):
        assert reader.get(path).status_code == 200, path
    answer = reader.post(f"{still_shop.url}/rename", {"name": "mine"})
    assert answer.status_code == 422
    assert "read-only" in Page(answer).text
    assert Page(answer).fields["name"] == "mine"
    answer = reader.htmx_post(f"{still_shop.endpoint_url}/suspend", at=still_shop.endpoint_url)
    assert "read-only" in Page(answer).text
    # The endpoint's page loads this by itself, so a refusal must not appear as a notice.
    answer = reader.htmx_get(f"{still_shop.endpoint_url}/connect", target="connect")
    assert answer.status_code == 200
    assert "sees no passwords" in Page(answer).text
    assert ":********@" in Page(answer).text
    answer = reader.post(f"{still_shop.endpoint_url}/connect", {})
    assert "it cannot read passwords" in Page(answer).text


def test_an_expired_key_cannot_sign_in(carol: Person, stack: Any) -> None:
    key = new_key(carol, expires_at=str(TOMORROW))
    with stack.database() as database:
        database.execute(
            "UPDATE controlplane_apikey SET expires_at = now() - interval '1 hour'"
            " WHERE name = 'limited' AND expires_at IS NOT NULL"
        )
    assert Browser().post("/sign-in", {"key": key}).status_code == 422
    assert any("expired" in row for row in Page(carol.get("/api-keys")).rows())


@pytest.mark.parametrize("limit", [{"project_id": "p"}, {"read_only": "on"}])
def test_a_server_whose_keys_have_no_limits(
    dave: Person, misbehaving: Misbehaving, limit: dict[str, str]
) -> None:
    misbehaving.body = b'[{"id": 1, "name": "laptop"}]'
    listed = Page(dave.get("/api-keys"))
    assert "Each key has full access to the account." in listed.text
    assert ">Access<" not in listed.html
    misbehaving.body = b'{"id": 7, "key": "abc", "name": "x"}'
    page = Page(dave.post("/api-keys/new", {"name": "x", **limit}))
    assert "without the requested limits" in page.text
    assert "abc" in page.text
