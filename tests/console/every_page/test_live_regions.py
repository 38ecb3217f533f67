"""Live regions: when they are polled, and what the answers are."""

import re
from typing import Any

import pytest

from console.api.transport import Transport
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.relay import relay
from tests.support.waiting import wait_for

# Milliseconds until a region is polled that shows an unfinished operation, and one that does not.
SOON, LATER = 250, 2000


def test_it_works(alice: Person) -> None:
    project_id = alice.api.new_project(name="fresh", wait=False)["project"]["id"]
    page = Page(alice.get(f"/projects/{project_id}"))
    if not page.polls:
        pytest.skip("the operations were quicker than the page")
    assert page.pause == SOON
    assert 'data-mark="' not in page.html
    answers = [page]

    def has_ended() -> bool:
        (known,) = re.findall(r'data-known="([^"]*)"', answers[-1].html)
        answer = alice.htmx_get(f"/projects/{project_id}/live?known={known}")
        assert answer["Cache-Control"] == "no-store"
        assert answer.content.decode().lstrip().startswith('<div id="live"')
        answers.append(Page(answer))
        return not answers[-1].polls

    wait_for(has_ended, "the region to report the end")
    # It is read once more after the end.
    assert "All operations have finished." in answers[-2].text
    assert "All operations have finished." not in answers[-1].text
    assert "Active" in answers[-1].text
    unchanged = alice.htmx_get(f"/projects/{project_id}/live?mark={answers[-1].mark}")
    assert (unchanged.status_code, unchanged.content) == (204, b"")


@pytest.mark.parametrize("path", ["", "/operations", "/endpoints/{endpoint}"])
def test_a_region_is_not_sent_again_until_something_changes(
    alice: Person, shop: Shop, path: str
) -> None:
    url = shop.url + path.format(endpoint=shop.endpoint_id)
    region = f"{url}-live" if path == "/operations" else f"{url}/live"
    page = alice.get(url)
    assert Page(page).pause == LATER
    assert alice.htmx_get(f"{region}?mark={Page(page).mark}").status_code == 204
    # The first poll after a problem, or of an older page, has no mark.
    assert Page(alice.htmx_get(region)).mark == Page(page).mark
    alice.api.patch(f"/projects/{shop.id}", {"project": {"name": f"shop of “{path}”"}})
    answer = alice.htmx_get(f"{region}?mark={Page(page).mark}")
    assert answer.status_code == 200
    assert Page(answer).mark not in ("", Page(page).mark)


def test_the_pages_of_an_account_have_its_mark(alice: Person, shop: Shop) -> None:
    for url, region in (("/", "/live"), ("/activity", "/activity-live")):
        page = alice.get(url)
        assert alice.htmx_get(f"{region}?mark={Page(page).mark}").status_code == 204
        alice.api.patch(f"/projects/{shop.id}", {"project": {"name": f"shop of {url}"}})
        assert alice.htmx_get(f"{region}?mark={Page(page).mark}").status_code == 200


def test_a_server_without_marks_is_read_at_each_poll(
    alice: Person, shop: Shop, settings: Any
) -> None:
    with relay(settings.MANAGEMENT_API_URL) as api:
        api.missing = {"/mark"}
        settings.MANAGEMENT_API_URL = api.url
        answer = alice.htmx_get(f"{shop.url}/live?mark=")
    assert answer.status_code == 200
    assert not Page(answer).mark
    assert Page(answer).pause == 5000


def test_another_server_of_this_api_is_not_asked_for_marks(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = (
        b'{"operations": [], "endpoints": [], "branches": [], "project": {"id": "p"}}'
    )
    assert Page(dave.get("/projects/p")).pause == 5000
    assert not misbehaving.asked_for("mark")


@pytest.mark.parametrize("status", ["scheduling", "running", "cancelling"])
def test_every_unfinished_status_keeps_it_polling(
    dave: Person, misbehaving: Misbehaving, status: str
) -> None:
    misbehaving.body = (
        b'{"operation": {"id": "o", "project_id": "p", "action": "start_compute", "status": "%s"},'
        b'"endpoints": [], "branches": [], "project": {"id": "p"}}' % status.encode()
    )
    assert Page(dave.htmx_get("/projects/p/operations/o/live")).pause == SOON


def test_the_end_of_a_quick_operation_is_announced(carol: Person, still_shop: Shop) -> None:
    def announced(known: str) -> bool:
        answer = carol.htmx_get(f"{still_shop.url}/live?{known}")
        return 'id="announce"' in answer.content.decode()

    newest = carol.api.get(f"{still_shop.url}/operations")["operations"][0]["id"]
    assert f'data-known="{newest}"' in carol.get(still_shop.url).content.decode()
    assert announced("known=another")
    assert announced("known=")
    # No operation has begun since, or none was requested.
    assert not announced(f"known={newest}")
    assert not announced("")


def test_a_poll_that_fails_shows_the_error_in_place_and_continues(
    carol: Person, still_shop: Shop, settings: Any, misbehaving: Misbehaving
) -> None:
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.refuse(503, "try later")
    answer = carol.htmx_get(f"{still_shop.url}/live?known=7")
    assert answer.status_code == 200
    assert answer["HX-Retarget"] == "#poll"
    assert answer["HX-Trigger"] == "perch:problem"
    assert answer.content.decode().lstrip().startswith('<p id="poll"')
    assert "try later" in Page(answer).text
    assert "Retrying." in Page(answer).text


def test_a_poll_without_a_good_key_offers_to_sign_in(alice: Person, shop: Shop) -> None:
    alice.post("/sign-out")
    answer = alice.htmx_get(f"{shop.url}/live?known=7", at=shop.url)
    page = Page(answer)
    assert answer["HX-Retarget"] == "#poll"
    assert "Sign in again" in page.text
    assert f"/sign-in?next={shop.url.replace('/', '%2F')}" in page.html


def test_a_poll_for_a_deleted_resource_says_so(carol: Person, still_shop: Shop) -> None:
    answer = carol.htmx_get(f"{still_shop.url}/endpoints/ep-gone-gone-123456/live")
    assert answer["HX-Trigger"] == "perch:gone"
    assert "endpoint not found" in Page(answer).text


def test_a_form_for_the_dialog_is_only_the_form(carol: Person, still_shop: Shop) -> None:
    answer = carol.htmx_get(f"{still_shop.url}/rename", target="dialog")
    assert answer.content.decode().lstrip().startswith("<article")
    assert "hx-disabled-elt" in answer.content.decode()


def test_a_change_made_on_the_page_renews_its_region(alice: Person, shop: Shop) -> None:
    url = f"{shop.url}/branches"
    answer = alice.htmx_post(f"{url}/{shop.dev_id}/rename", {"name": "store", "next": url}, at=url)
    assert answer["HX-Trigger"] == "perch:changed"
    assert answer["HX-Reswap"] == "none"
    assert "Branch renamed to store." in Page(answer).text


@pytest.mark.thorough
def test_a_change_made_elsewhere_redirects_to_the_page(alice: Person, shop: Shop) -> None:
    answer = alice.htmx_post(f"{shop.url}/rename", {"name": "store"}, at=shop.url)
    assert answer["HX-Redirect"] == f"{shop.url}/settings"


def test_a_refused_form_is_returned_alone_with_what_was_typed(
    carol: Person, still_shop: Shop
) -> None:
    answer = carol.htmx_post(f"{still_shop.url}/new-branch", {"name": "dev"}, at=still_shop.url)
    assert answer.status_code == 422
    assert answer.content.decode().lstrip().startswith("<article")
    assert Page(answer).fields["name"] == "dev"


# How many calls each page takes, however much it shows, with that for the mark.
CALLS = [
    ("", 5),
    ("/branches", 6),
    ("/branches/{branch}", 10),
    ("/settings", 2),
    ("/operations", 6),
    ("/operations-live", 6),
    ("/timeline", 5),
    # With the events of the request and the steps of each of its two operations. One more call is
    # for retries if an operation failed or was cancelled.
    ("/runs/{run}", 5 + 1 + 2),
    # One more for its activity.
    ("/endpoints/{endpoint}", 3 + 3),
    ("/endpoints/{endpoint}/pg-settings", 4),
    ("/events", 5),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "calls"), CALLS)
def test_a_page_takes_few_calls_and_that_for_the_mark_first(
    carol: Person, still_shop: Shop, monkeypatch: pytest.MonkeyPatch, path: str, calls: int
) -> None:
    """What changes while the page is read then changes the mark, and the page is read again."""
    made: list[tuple[str, ...]] = []
    real = Transport._call

    def counted(self: Transport, session: Any, method: str, path: Any, **named: Any) -> Any:
        # The request for the service's status is made every few seconds, whatever the page is.
        if path != ("status",):
            made.append(path)
        assert method == "GET"
        return real(self, session, method, path, **named)

    monkeypatch.setattr(Transport, "_call", counted)
    known = {
        "branch": still_shop.main_id,
        "endpoint": still_shop.endpoint_id,
        "run": still_shop.created["operations"][0]["chain_id"],
    }
    assert carol.get(still_shop.url + path.format(**known)).status_code == 200
    assert len(made) == calls, made
    assert path == "/settings" or made[0][-1] == "mark"


def test_the_announced_end_says_that_an_operation_has_failed(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = (
        b'{"operations": [{"id": "new", "status": "finished"},'
        b'{"id": "o", "action": "start_compute", "status": "failed", "error": "<b>no disk</b>"}],'
        b'"endpoints": [], "branches": [], "project": {"id": "p"}}'
    )
    page = Page(dave.htmx_get("/projects/p/live?known=new~"))
    assert "Start endpoint failed: <b>no disk</b>" in page.text
    assert "Nothing is in progress. Start endpoint has failed." in page.text
    assert 'href="/projects/p/operations/o"' in page.html
    assert "<b>no disk" not in page.html
