"""Endpoints: their page, creating, reassigning, switching, starting, deleting."""

import re
from typing import Any

import psycopg
import pytest

from tests.console.conftest import Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def endpoint(person: Person, shop: Shop) -> Any:
    return person.api.get(f"/projects/{shop.id}/endpoints/{shop.endpoint_id}")["endpoint"]


def wait_until_quiet(person: Person, shop: Shop) -> None:
    wait_for(lambda: not Page(person.get(shop.url)).polls, "every operation has ended")


def test_it_works(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(still_shop.endpoint_url))
    shown = endpoint(carol, still_shop)
    for words in (shown["host"], still_shop.main_id, "0.25", "Read-write", "5 minutes (default)"):
        assert words in page.text
    assert "Start endpoint | OK" in page.row("Start endpoint")
    assert "Create first branch" not in page.text


def test_creating_offers_only_free_branches(alice: Person, shop: Shop) -> None:
    page = Page(alice.get(f"{shop.url}/new-endpoint"))
    assert page.options["branch_id"] == [shop.dev_id]
    answer = alice.post(f"{shop.url}/new-endpoint", {"branch_id": shop.dev_id, "max_cu": "2"})
    created = alice.api.get(f"/projects/{shop.id}/endpoints")["endpoints"]
    (new,) = {e["id"] for e in created} - {shop.endpoint_id}
    # On its page, which shows the start and how to connect.
    assert answer["Location"] == f"{shop.url}/endpoints/{new}"
    assert {e["branch_id"] for e in created} == {shop.main_id, shop.dev_id}
    assert 2 in [e["autoscaling_limit_max_cu"] for e in created]
    page = Page(alice.get(f"{shop.url}/new-endpoint"))
    assert "Every branch already has an endpoint" in page.text


def test_a_branch_that_was_taken_meanwhile_is_refused_with_the_endpoint(
    carol: Person, still_shop: Shop
) -> None:
    body = {"branch_id": still_shop.main_id, "min_cu": "0.5"}
    answer = carol.post(f"{still_shop.url}/new-endpoint", body)
    assert answer.status_code == 422
    page = Page(answer)
    assert (
        f"The branch “main” already has the endpoint {still_shop.endpoint_id}, and a branch has at"
        " most one: choose another branch, or first reassign or delete that endpoint." in page.text
    )
    assert "already exists" not in page.text
    # The branch is chosen still, by its name.
    assert page.fields["branch_id"] == still_shop.main_id
    assert f'<option value="{still_shop.main_id}" selected>main (default)</option>' in page.html
    assert page.fields["min_cu"] == "0.5"


def test_each_invalid_field_has_its_own_error(carol: Person, still_shop: Shop) -> None:
    body = {"branch_id": still_shop.dev_id, "max_cu": "100", "suspend_timeout": "-5"}
    answer = carol.post(f"{still_shop.url}/new-endpoint", body)
    errors = dict(answer.context["form"].errors)
    assert set(errors) == {"max_cu", "suspend_timeout"}
    assert "56" in errors["max_cu"][0]
    assert ";" not in errors["max_cu"][0]
    assert "-1" in errors["suspend_timeout"][0]


RUBBISH = [
    {"branch_id": "br-no-such-123456"},
    {"branch_id": ""},
    {"min_cu": "much"},
    {"min_cu": "0"},
    {"max_cu": "1000"},
    {"min_cu": "4", "max_cu": "1"},
    {"suspend_timeout": "-7"},
    {"suspend_timeout": "soon"},
]


def test_invalid_values_are_refused_and_kept_in_the_form(carol: Person, still_shop: Shop) -> None:
    for fields in RUBBISH:
        sent = {"branch_id": still_shop.dev_id, **fields}
        answer = carol.post(f"{still_shop.url}/new-endpoint", sent)
        assert answer.status_code == 422, fields
        page = Page(answer)
        assert 'role="alert"' in page.html
        for name, value in sent.items():
            assert page.fields.get(name, "") == value
    assert len(carol.api.get(f"/projects/{still_shop.id}/endpoints")["endpoints"]) == 1


@pytest.mark.thorough
def test_reassigning_to_an_occupied_branch_changes_nothing(alice: Person, shop: Shop) -> None:
    body = {"branch": {"name": "busy"}, "endpoints": [{"type": "read_write"}]}
    busy = alice.api.post(f"/projects/{shop.id}/branches", body)
    alice.api.finish(busy)
    answer = alice.post(f"{shop.endpoint_url}/reassign", {"branch_id": busy["branch"]["id"]})
    assert answer.status_code == 422
    page = Page(answer)
    assert f"The branch “busy” already has the endpoint {busy['endpoints'][0]['id']}" in page.text
    assert f'<option value="{busy["branch"]["id"]}" selected>busy</option>' in page.html
    assert page.fields["branch_id"] == busy["branch"]["id"]
    assert endpoint(alice, shop)["branch_id"] == shop.main_id


@pytest.mark.thorough
def test_only_changed_settings_are_sent(alice: Person, shop: Shop) -> None:
    page = Page(alice.get(f"{shop.endpoint_url}/settings"))
    before = endpoint(alice, shop)
    answer = alice.post(f"{shop.endpoint_url}/settings", page.fields)
    assert answer["Location"] == shop.endpoint_url
    assert "Nothing was changed" in Page(alice.get(shop.endpoint_url)).text
    assert endpoint(alice, shop)["updated_at"] == before["updated_at"]

    changed = page.fields | {
        "suspend_timeout": "90",
        "pg_settings": "work_mem = 8MB\r\n\r\nlog_statement=ddl\r\n",
    }
    alice.post(f"{shop.endpoint_url}/settings", changed)
    wait_until_quiet(alice, shop)
    after = endpoint(alice, shop)
    assert after["suspend_timeout_seconds"] == 90
    assert after["settings"]["pg_settings"] == {"work_mem": "8MB", "log_statement": "ddl"}
    assert "work_mem = 8MB" in Page(alice.get(shop.endpoint_url)).text


def set_pg_settings(person: Person, shop: Shop, **pg_settings: str) -> None:
    """Set them by the API, as another client does, not by the console."""
    body = {"endpoint": {"settings": {"pg_settings": pg_settings}}}
    person.api.finish(person.api.patch(f"/projects/{shop.id}/endpoints/{shop.endpoint_id}", body))


@pytest.mark.thorough
def test_settings_that_others_changed_meanwhile_stay(alice: Person, shop: Shop) -> None:
    set_pg_settings(alice, shop, work_mem="6MB", log_statement="ddl", jit="off")
    page = Page(alice.get(f"{shop.endpoint_url}/settings"))
    set_pg_settings(alice, shop, work_mem="6MB", log_statement="all", jit="off", geqo="off")

    sized = page.fields | {"max_cu": "0.5", "suspend_timeout": "90"}
    alice.post(f"{shop.endpoint_url}/settings", sized)
    alice.post(f"{shop.endpoint_url}/pooling", {"to": "on"})
    wait_until_quiet(alice, shop)
    shown = endpoint(alice, shop)
    assert (shown["autoscaling_limit_max_cu"], shown["suspend_timeout_seconds"]) == (0.5, 90)
    pg_settings = {"work_mem": "6MB", "log_statement": "all", "jit": "off", "geqo": "off"}
    assert shown["settings"]["pg_settings"] == pg_settings

    text = "work_mem = 7MB\r\nlog_statement = ddl\r\nenable_sort = off"
    alice.post(f"{shop.endpoint_url}/settings", page.fields | {"pg_settings": text})
    wait_until_quiet(alice, shop)
    assert endpoint(alice, shop)["settings"]["pg_settings"] == {
        "work_mem": "7MB",
        "log_statement": "all",
        "enable_sort": "off",
        "geqo": "off",
    }


def test_settings_that_cannot_be_parsed_are_refused_and_kept(
    carol: Person, still_shop: Shop
) -> None:
    for text in ("work_mem 8MB", "= 8MB", "work_mem = 8MB\nwork_mem = 9MB"):
        answer = carol.post(f"{still_shop.endpoint_url}/settings", {"pg_settings": text})
        assert answer.status_code == 422, text
        assert text in Page(answer).fields["pg_settings"]


def test_a_setting_that_the_api_refuses_stays_in_the_form(alice: Person, shop: Shop) -> None:
    page = Page(alice.get(f"{shop.endpoint_url}/settings"))
    sent = page.fields | {"pg_settings": "work_mem = lots"}
    answer = alice.post(f"{shop.endpoint_url}/settings", sent)
    assert answer.status_code == 422
    assert "Available settings" in Page(answer).text
    (words,) = answer.context["form"].errors["pg_settings"]
    assert words.startswith("work_mem: must be a number with one of the units")
    assert not answer.context["form"].non_field_errors()
    assert Page(answer).fields["pg_settings"] == "work_mem = lots"


def test_deleting_requires_the_typed_id(alice: Person, shop: Shop) -> None:
    answer = alice.post(f"{shop.endpoint_url}/delete", {"typed": "ep-other-one-123456"})
    assert answer.status_code == 422
    page = Page(answer)
    assert f"This does not match {shop.endpoint_id}" in page.text
    assert page.fields["typed"] == "ep-other-one-123456"
    answer = alice.post(f"{shop.endpoint_url}/delete", {"typed": shop.endpoint_id})
    assert answer["Location"] == shop.url
    assert "No endpoint" in Page(alice.get(shop.url)).text
    assert alice.get(shop.endpoint_url).status_code == 404
    assert alice.get(f"{shop.endpoint_url}/delete").status_code == 404


@pytest.mark.thorough
def test_another_users_endpoint_is_not_found(carol: Person, bob: Person, still_shop: Shop) -> None:
    for path in ("", "/reassign", "/settings", "/delete"):
        assert bob.get(still_shop.endpoint_url + path).status_code == 404, path
    for path in ("/start", "/suspend", "/restart", "/pooling", "/disable", "/enable"):
        bob.post(still_shop.endpoint_url + path, {"to": "on"})
    bob.post(f"{still_shop.endpoint_url}/delete", {"typed": still_shop.endpoint_id})
    shown = endpoint(carol, still_shop)
    assert shown["current_state"] == "active"
    assert shown["disabled"] is False


def test_a_button_has_no_page_of_its_own(carol: Person, still_shop: Shop) -> None:
    answer = carol.get(f"{still_shop.endpoint_url}/start")
    assert answer.status_code == 405
    assert "Method not allowed" in Page(answer).text


@pytest.mark.thorough
def test_actions_that_drop_connections_ask_for_confirmation(alice: Person, shop: Shop) -> None:
    page = Page(alice.get(shop.endpoint_url))
    for what in ("suspend", "restart", "disable"):
        assert f'href="{shop.endpoint_url}/{what}?' in page.html
        asked = Page(alice.get(f"{shop.endpoint_url}/{what}"))
        assert "Open connections are closed" in asked.text
        assert shop.endpoint_id in asked.text
    assert endpoint(alice, shop)["current_state"] == "active"
    before = endpoint(alice, shop)["started_at"]
    answer = alice.post(f"{shop.endpoint_url}/restart")
    assert answer["Location"] == shop.endpoint_url
    wait_until_quiet(alice, shop)
    assert endpoint(alice, shop)["started_at"] > before


def test_the_allowed_postgres_settings_are_listed_with_their_ranges(
    carol: Person, still_shop: Shop
) -> None:
    address = f"{still_shop.endpoint_url}/pg-settings"
    first = Page(carol.get(address))
    assert len(first.rows()) <= 26
    assert re.search(r'aria-current="page" aria-label="Page 1 of \d+"', first.html)
    assert re.search(r'\?page=2" aria-label="Page 2"', first.html)
    page = Page(carol.get(f"{address}?search=work_mem+query"))
    words = page.row("work_mem")
    for part in ("4MB", "64kB to 1GB; a bare number is in units of kB", "query workspaces"):
        assert part in words
    assert "No setting matches" in Page(carol.get(f"{address}?search=nothing-such")).text
    assert address in carol.get(f"{still_shop.endpoint_url}/settings").content.decode()
    assert f'data-live="{address}-live?search=' in page.html
    region = carol.htmx_get(f"{address}-live?search=work_mem+query").content.decode()
    assert region.startswith('<div id="live"')


def test_an_endpoint_whose_last_start_failed_is_not_shown_as_calm(
    alice: Person, shop: Shop
) -> None:
    data = shop.stack.data_dir(shop.main_id)
    shop.suspend()
    pages = (
        shop.url,
        shop.endpoint_url,
        f"{shop.url}/branches",
        f"{shop.url}/branches/{shop.main_id}",
    )
    assert all("start failed" not in Page(alice.get(each)).text for each in pages)
    kept = data.rename(data.with_name("kept"))
    try:
        (failed,) = shop.client.post(shop.endpoint_path(rest="/start"))["operations"]
        assert shop.client.ended(shop.id, failed["id"])["status"] == "failed"
    finally:
        kept.rename(data)
    for each in pages:
        link = f'href="{shop.url}/operations/{failed["id"]}"'
        assert "start failed" in Page(alice.get(each)).text, each
        assert link in alice.get(each).content.decode(), each
    shop.client.finish(shop.client.post(shop.endpoint_path(rest="/start")))
    assert all("start failed" not in Page(alice.get(each)).text for each in pages)
    shop.suspend()
    assert all("start failed" not in Page(alice.get(each)).text for each in pages)


def test_the_page_shows_what_keeps_the_endpoint_active(carol: Person, still_shop: Shop) -> None:
    address = f"{still_shop.endpoint_url}/sessions"
    assert address in carol.get(still_shop.endpoint_url).content.decode()
    directory = still_shop.stack.state_dir / "sockets" / still_shop.endpoint_id
    with psycopg.connect(host=str(directory), user="neondb_owner", dbname="neondb") as client:
        client.execute("SELECT '<b>bold</b>'")
        # Without scripts, the link leads to a page; the script asks for the part alone.
        page = Page(carol.get(address))
        assert "<h1>What keeps it active</h1>" in page.html
        assert f'href="{still_shop.endpoint_url}"' in page.html
        part = Page(carol.htmx_get(address, target="sessions"))
        assert "<h1>" not in part.html
        assert "neondb_owner" in part.text
        assert "idle in transaction" in part.text
        # A statement is a stranger's text.
        assert "<b>bold</b>" in part.text
        assert "Will be suspended at" in part.text
