"""Operations: the list, page by page, and one's page."""

import pytest

from console.views import operations
from tests.console.conftest import Person, Shop
from tests.console.pages import Page


def test_it_works(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/operations"))
    names = [row.split(" | ")[0] for row in page.rows()]
    assert names == ["Create branch", "Start compute", "Create timeline"]
    row = page.row("Start compute")
    assert "OK" in row
    assert "main" in row
    assert still_shop.endpoint_id in row
    assert " ms" in row or " s" in row
    assert not page.polls
    assert "Older" not in page.text


def test_older_ones_come_by_cursor(
    carol: Person, still_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_A_PAGE", 2)
    first = carol.get(f"{still_shop.url}/operations")
    assert "Older" in Page(first).text
    query = {"cursor": first.context["older_cursor"]}
    second = carol.browser.get(f"{still_shop.url}/operations", query)
    assert [row.name for row in second.context["operations"]] == ["Create timeline"]
    page = Page(second)
    assert "Newest" in page.text
    assert "Older" not in page.text


def test_a_broken_cursor_is_a_page_with_a_way_out(carol: Person, still_shop: Shop) -> None:
    answer = carol.browser.get(f"{still_shop.url}/operations", {"cursor": "yesterday"})
    assert answer.status_code == 400
    page = Page(answer)
    assert "cursor" in page.text
    assert "All projects" in page.text


def test_one_operation_tells_its_course(carol: Person, still_shop: Shop) -> None:
    (start,) = [
        operation
        for operation in carol.api.get(f"/projects/{still_shop.id}/operations")["operations"]
        if operation["action"] == "start_compute"
    ]
    page = Page(carol.get(f"{still_shop.url}/operations/{start['id']}"))
    for words in ("Start compute", "Requested", "OK", "Duration", still_shop.endpoint_id, "main"):
        assert words in page.text
    assert not page.polls


def test_an_unfinished_one_polls(alice: Person, shop: Shop) -> None:
    path = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}/suspend"
    (suspend,) = alice.api.post(path)["operations"]
    url = f"{shop.url}/operations/{suspend['id']}"
    shown = alice.get(url)
    assert Page(shown).polls or "OK" in Page(shown).text
    alice.api.ended(shop.id, suspend["id"])
    assert alice.htmx_get(f"{url}/live").status_code == 286


def test_an_unknown_one_is_not_found(carol: Person, still_shop: Shop) -> None:
    for operation_id in ("00000000-0000-0000-0000-000000000000", "rubbish"):
        assert carol.get(f"{still_shop.url}/operations/{operation_id}").status_code == 404


def test_of_another_project_is_not_found(alice: Person, shop: Shop) -> None:
    other = alice.api.new_project(name="other", wait=False)
    foreign = other["operations"][0]["id"]
    assert alice.get(f"{shop.url}/operations/{foreign}").status_code == 404
