"""Live regions: what htmx requests and gets while operations are unfinished."""

import re
from typing import Any

import pytest

from console.api import batches
from console.api.transport import Transport
from console.pages import live_regions as polling
from console.pages import outcomes
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for


def pace(answer: Any) -> str:
    found = re.search(r'<p id="poll"[^>]* hx-trigger="every (\w+)"', answer.content.decode())
    return found[1] if found else ""


def test_it_works(alice: Person) -> None:
    project_id = alice.api.new_project(name="fresh", wait=False)["project"]["id"]
    page = alice.get(f"/projects/{project_id}")
    if not pace(page):
        pytest.skip("the operations were quicker than the page")
    assert pace(page) == "250ms"
    answers: list[Any] = []

    def has_ended() -> bool:
        url = re.findall(r'hx-get="([^"]*/live\?n=\d+)"', (answers or [page])[-1].content.decode())
        assert len(url) == 1, "one polling region, not one a row"
        answers.append(alice.htmx_get(url[0]))
        assert answers[-1]["Cache-Control"] == "no-store"
        assert answers[-1].content.decode().lstrip().startswith('<div id="live"')
        return bool(answers[-1].status_code == polling.STOP_POLLING)

    wait_for(has_ended, "the region to report the end")
    assert not pace(answers[-1])
    assert "All operations have finished." in Page(answers[-1]).text
    assert "Active" in Page(answers[-1]).text


def test_a_region_without_unfinished_operations_does_not_poll(
    carol: Person, still_shop: Shop
) -> None:
    for path in ("", "/operations", f"/endpoints/{still_shop.endpoint_id}"):
        page = Page(carol.get(still_shop.url + path))
        assert not page.polls, page.rows()
    for path in ("/live", "/operations-live", f"/endpoints/{still_shop.endpoint_id}/live"):
        answer = carol.htmx_get(still_shop.url + path)
        assert answer.status_code == 286, path
        assert not Page(answer).polls


def test_polls_become_less_frequent(
    carol: Person, monkeypatch: pytest.MonkeyPatch, still_shop: Shop
) -> None:
    monkeypatch.setattr(outcomes, "is_unfinished", lambda operation: True)
    paces = [
        pace(carol.htmx_get(f"{still_shop.url}/live?n={turn}")) for turn in (0, 2, 12, 40, 9999)
    ]
    assert paces == ["250ms", "500ms", "1s", "5s", "5s"]
    for rubbish in ("-1", "x", "9" * 50, "²"):
        assert pace(carol.htmx_get(f"{still_shop.url}/live?n={rubbish}")) == "250ms"


@pytest.mark.parametrize("status", ["scheduling", "running", "cancelling"])
def test_every_unfinished_status_keeps_it_polling(
    dave: Person, misbehaving: Misbehaving, status: str
) -> None:
    misbehaving.body = (
        b'{"operation": {"id": "o", "project_id": "p", "action": "start_compute", "status": "%s"},'
        b'"endpoints": [], "branches": [], "project": {"id": "p"}}' % status.encode()
    )
    answer = dave.htmx_get("/projects/p/operations/o/live?n=5")
    assert pace(answer) == "500ms"


def test_the_end_of_a_quick_operation_is_announced(carol: Person, still_shop: Shop) -> None:
    def announced(known: str) -> bool:
        answer = carol.htmx_get(f"{still_shop.url}/live?{known}")
        return 'id="announce"' in answer.content.decode()

    newest = carol.api.get(f"{still_shop.url}/operations")["operations"][0]["id"]
    assert f'data-newest="{newest}"' in carol.get(still_shop.url).content.decode()
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
    answer = carol.htmx_get(f"{still_shop.url}/live?n=7")
    assert answer.status_code == 200
    assert answer["HX-Retarget"] == "#poll"
    assert answer.content.decode().lstrip().startswith('<p id="poll"')
    assert "try later" in Page(answer).text
    assert pace(answer) == polling.PACE_AFTER_A_PROBLEM
    assert "n=7" in answer.content.decode()


def test_a_poll_without_a_good_key_offers_to_sign_in(alice: Person, shop: Shop) -> None:
    alice.post("/sign-out")
    answer = alice.htmx_get(f"{shop.url}/live?n=7", at=shop.url)
    page = Page(answer)
    assert answer["HX-Retarget"] == "#poll"
    assert "Sign in again" in page.text
    assert f"/sign-in?next={shop.url.replace('/', '%2F')}" in page.html


def test_a_poll_for_a_deleted_resource_ends(carol: Person, still_shop: Shop) -> None:
    answer = carol.htmx_get(f"{still_shop.url}/endpoints/ep-gone-gone-123456/live?n=3")
    assert not pace(answer)
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


@pytest.mark.thorough
def test_a_refused_button_shows_the_reason_and_renews_the_region(alice: Person, shop: Shop) -> None:
    path = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"
    alice.api.finish(alice.api.patch(path, {"endpoint": {"disabled": True}}))
    sent = {"next": shop.url}
    answer = alice.htmx_post(f"{shop.endpoint_url}/start", sent, at=shop.url)
    assert answer["HX-Trigger"] == "perch:changed"
    assert "disabled" in Page(answer).text
    assert 'role="alert"' in answer.content.decode()


# The calls of each page, by rounds: a call of a later round needs the result of an earlier one.
ROUNDS = [
    ("", [4]),
    ("/branches", [5]),
    ("/branches/{branch}", [9]),
    ("/settings", [2]),
    ("/operations", [5]),
    ("/operations-live", [5]),
    ("/timeline", [4]),
    # Then the events of the request and the steps of each of its two operations, and one more
    # call for retries if an operation failed or was cancelled.
    ("/runs/{run}", [4, 1 + 2]),
    # One more for its activity, in the second round.
    ("/endpoints/{endpoint}", [2, 3]),
    ("/endpoints/{endpoint}/pg-settings", [3]),
    ("/events", [4]),
]


def requests_of(
    person: Person, shop: Shop, path: str, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, int]]:
    """Return the first part of the path of each request for the page, and how many calls it has."""
    made: list[tuple[str, int]] = []
    real = Transport._call

    def counted(self: Transport, session: Any, method: str, path: Any, **named: Any) -> Any:
        # The request for the service's status is made every few seconds, whatever the page is.
        if path != ("status",):
            calls = len(named["query"]["path"]) if path == ("batch",) else 1
            made.append((path[0], calls))
        assert method == "GET"
        return real(self, session, method, path, **named)

    monkeypatch.setattr(Transport, "_call", counted)
    known = {
        "branch": shop.main_id,
        "endpoint": shop.endpoint_id,
        "run": shop.created["operations"][0]["chain_id"],
    }
    answer = person.get(shop.url + path.format(**known))
    assert answer.status_code in (200, polling.STOP_POLLING)
    return made


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "rounds"), ROUNDS)
def test_a_page_sends_the_same_few_calls_together_whatever_it_shows(
    carol: Person,
    still_shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    rounds: list[int],
) -> None:
    made = requests_of(carol, still_shop, path, monkeypatch)
    assert made == [("batch", calls) for calls in rounds]


@pytest.mark.parametrize(("path", "rounds"), ROUNDS[:3])
def test_a_server_without_batches_gets_the_same_calls_one_by_one(
    carol: Person,
    still_shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    rounds: list[int],
) -> None:
    monkeypatch.setattr(batches, "may_have_batches", lambda url: False)
    made = requests_of(carol, still_shop, path, monkeypatch)
    assert made == [("projects", 1)] * sum(rounds)


def test_the_states_are_not_older_than_the_operations(
    dave: Person, misbehaving: Misbehaving
) -> None:
    """Otherwise the last poll could show a finished operation and the state from before its end."""
    misbehaving.body = (
        b'{"operations": [], "endpoints": [], "branches": [], "project": {"id": "p"}}'
    )
    assert dave.get("/projects/p").status_code == 200
    paths = [path.split("/p/")[-1].split("?")[0] for path in misbehaving.asked]
    assert paths.index("operations") < min(paths.index("endpoints"), paths.index("branches"))


def test_the_announced_end_says_that_an_operation_has_failed(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = (
        b'{"operations": [{"id": "new", "status": "finished"},'
        b'{"id": "o", "action": "start_compute", "status": "failed", "error": "<b>no disk</b>"}],'
        b'"endpoints": [], "branches": [], "project": {"id": "p"}}'
    )
    answer = dave.htmx_get("/projects/p/live?n=4")
    assert answer.status_code == polling.STOP_POLLING
    page = Page(answer)
    assert "Start endpoint failed: <b>no disk</b>" in page.text
    assert "Nothing is in progress. Start endpoint has failed." in page.text
    assert 'href="/projects/p/operations/o"' in page.html
    assert "<b>no disk" not in page.html


def test_a_failure_disappears_with_the_resource(dave: Person, misbehaving: Misbehaving) -> None:
    for there, is_shown in ((b'{"id": "ep-a"}', True), (b"", False)):
        misbehaving.body = (
            b'{"operations": [{"id": "o", "endpoint_id": "ep-a", "status": "failed"}],'
            b'"endpoints": [%s], "branches": [], "project": {"id": "p"}}' % there
        )
        assert ("failed" in Page(dave.get("/projects/p")).text) is is_shown
