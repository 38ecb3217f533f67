"""Operations as runs: the paged list, and one run's page."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from console.operations import views as operations
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.operations.test_run_page import answer_with, told
from tests.console.pages import Page


def test_it_works(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/operations"))
    names = [row.split(" | ")[0] for row in page.rows()]
    assert names == [
        "Create branch dev",
        "Create the project with branch main Create first branch : OK Start endpoint : OK",
    ]
    row = page.row("Create branch dev")
    assert "OK" in row
    assert "you" in row
    assert " ms" in row or " s" in row
    assert not page.polls
    assert "Older" not in page.text
    assert "2 runs" in page.text


def test_older_runs_come_by_cursor_and_no_run_is_split(
    carol: Person, still_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "PAGE_SIZE", 2)
    first = carol.get(f"{still_shop.url}/operations")
    # Of the second run, the API's page has one operation; the console shows all of them.
    assert [row.run.title for row in first.context["runs"]] == [
        "Create branch dev",
        "Create the project with branch main",
    ]
    assert len(first.context["runs"][1].operations) == 2
    second = carol.get(f"{still_shop.url}/operations?{first.context['older_query']}")
    # The next page does not list the rest of that run again.
    assert second.context["runs"] == []
    page = Page(second)
    assert "No older operations." in page.text
    assert "Newest" in page.text
    assert 'id="older"' not in page.html


def test_a_run_is_found_by_any_of_its_operations_and_shown_whole(
    carol: Person, still_shop: Shop
) -> None:
    answer = carol.get(f"{still_shop.url}/operations?action=start_compute")
    (row,) = answer.context["runs"]
    assert [part.name for part in row.operations] == ["Create first branch", "Start endpoint"]


def test_a_broken_cursor_shows_a_page_with_a_link_out(carol: Person, still_shop: Shop) -> None:
    answer = carol.browser.get(f"{still_shop.url}/operations", {"cursor": "yesterday"})
    assert answer.status_code == 400
    page = Page(answer)
    assert "cursor" in page.text
    assert "All projects" in page.text


def test_a_run_shows_its_steps(carol: Person, still_shop: Shop) -> None:
    first = carol.api.get(f"/projects/{still_shop.id}/operations")["operations"][-1]
    page = Page(carol.get(f"{still_shop.url}/runs/{first['chain_id']}"))
    for words in (
        *("Create the project with branch main", "by you", "OK", "Started", "Duration"),
        *("The project “shop” was created", "Starting Postgres", "Waiting for", "Started"),
        *(still_shop.endpoint_id, "start_compute"),
    ):
        assert words in page.text, words
    assert not page.polls


def test_an_unfinished_run_polls(alice: Person, shop: Shop) -> None:
    path = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}/suspend"
    (suspend,) = alice.api.post(path)["operations"]
    url = f"{shop.url}/runs/{suspend['chain_id']}"
    shown = alice.get(url)
    assert Page(shown).polls or "OK" in Page(shown).text
    alice.api.ended(shop.id, suspend["id"])
    assert not Page(alice.htmx_get(f"{url}/live")).polls


def test_an_unknown_run_is_not_found(carol: Person, still_shop: Shop) -> None:
    for operation_id in ("00000000-0000-0000-0000-000000000000", "rubbish"):
        assert carol.get(f"{still_shop.url}/operations/{operation_id}").status_code == 404


@pytest.mark.thorough
def test_a_run_of_another_project_is_not_found(alice: Person, shop: Shop) -> None:
    other = alice.api.new_project(name="other", wait=False)
    foreign = other["operations"][0]["id"]
    assert alice.get(f"{shop.url}/operations/{foreign}").status_code == 404


def test_changes_with_the_same_operations_are_told_apart(alice: Person, shop: Shop) -> None:
    for name in ("ann", "bob"):
        body = {"role": {"name": name}}
        path = f"/projects/{shop.id}/branches/{shop.main_id}/roles"
        alice.api.finish(alice.api.post(path, body))
    page = Page(alice.get(f"{shop.url}/operations"))
    for name in ("ann", "bob"):
        title = f"The role “{name}” was created"
        assert page.row(title).startswith(title)
    # So is what the run's page is called, and a suspend by which an endpoint is disabled.
    run = shop.operations()[0]["chain_id"]
    assert "The role “bob” was created" in Page(alice.get(f"{shop.url}/runs/{run}")).text
    shop.done(alice.api.patch(shop.endpoint_path(), {"endpoint": {"disabled": True}}))
    assert (
        f"Change endpoint {shop.endpoint_id}: disabled"
        in Page(alice.get(f"{shop.url}/operations")).rows()[0]
    )
    shop.done(alice.api.patch(shop.endpoint_path(), {"endpoint": {"disabled": False}}))


@pytest.mark.thorough
def test_the_timeline_is_shown_as_a_table_too(carol: Person, still_shop: Shop) -> None:
    listed = carol.get(f"{still_shop.url}/operations?hours=1").content.decode()
    assert "Runs of the last hour" in listed
    assert (
        "Runs since the project was created" in Page(carol.get(f"{still_shop.url}/operations")).text
    )
    assert listed.count('role="img" aria-label="') >= 2
    page = Page(carol.get(f"{still_shop.url}/timeline?hours=24"))
    row = page.row("Create the project with branch main")
    assert row.startswith(still_shop.endpoint_id)
    assert "OK" in row
    # The picture and the table use the same time zone, and the day is shown.
    carol.browser.cookies["perch_zone"] = "Asia/Tokyo"
    page = Page(carol.get(f"{still_shop.url}/timeline?hours=24"))
    assert "<small>JST</small>" in page.html
    began = still_shop.operations()[-1]["created_at"]
    local = datetime.fromisoformat(began).astimezone(ZoneInfo("Asia/Tokyo"))
    assert f"{local:%Y-%m-%d %H:%M:%S}" in page.row("Create the project with branch main")
    del carol.browser.cookies["perch_zone"]
    # An invalid choice means the usual hours. The picture then begins with a new project.
    timeline = f"{still_shop.url}/timeline"
    assert "since the project was created" in Page(carol.get(f"{timeline}?hours=7000")).text
    assert "Runs of the last 6 hours" in Page(carol.get(f"{timeline}?hours=6")).text
    assert not Page(carol.htmx_get(f"{still_shop.url}/timeline-live")).polls


@pytest.mark.thorough
def test_a_list_that_is_filtered_reports_no_failures(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="failed", updated_at=""))
    assert "Create branch failed" in Page(dave.get("/projects/p/operations")).text
    page = Page(dave.get("/projects/p/operations?status=failed"))
    assert "Create branch failed" not in page.text
    assert "Error" in page.row("Create branch")
