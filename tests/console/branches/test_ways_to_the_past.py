"""The ways to the page of past moments: the form of a new branch, menus and the palette."""

import re

from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page


def test_a_new_branch_can_be_of_a_past_moment(carol: Person, still_shop: Shop) -> None:
    url = f"{still_shop.url}/new-branch"
    page = Page(carol.get(url))
    assert page.options["as_of"] == ["", "past"]
    sent = {"name": "then", "parent_id": still_shop.dev_id, "as_of": "past"}
    answer = carol.post(url, sent)
    assert answer["Location"] == f"{still_shop.url}/branches/{still_shop.dev_id}/history?name=then"
    assert "then" not in Page(carol.get(f"{still_shop.url}/branches")).text


def test_another_server_offers_no_past_moment(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.body = b'{"branches": [{"id": "br-a", "default": true}], "project": {"id": "p"}}'
    assert "as_of" not in Page(dave.get("/projects/p/new-branch")).options
    assert "Go back" not in Page(dave.get("/go?project=p&q=restore")).text


def test_menus_of_branches_lead_to_their_past(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/branches"))
    for branch_id in (still_shop.main_id, still_shop.dev_id):
        address = f"{still_shop.url}/branches/{branch_id}/history"
        assert re.search(f'href="{address}">Go back to a moment…', page.html)
        own = Page(carol.get(f"{still_shop.url}/branches/{branch_id}")).html
        assert f'id="back-{branch_id}" href="{address}"' in own


def test_the_palette_finds_the_past_by_what_it_is_for(carol: Person, still_shop: Shop) -> None:
    asked = f"/go?project={still_shop.id}&q=restore"
    assert "Go back to a moment of main" in Page(carol.get(asked)).text
    # Of other branches, only for the one whose page is open.
    assert "moment of dev" not in Page(carol.get(asked)).text
    at = f"{still_shop.url}/branches/{still_shop.dev_id}"
    assert "Go back to a moment of dev" in Page(carol.htmx_get(asked, target="dialog", at=at)).text
