"""Cancelling and retrying: when they are offered, confirmed, sent once, and refused."""

import json
import re

import pytest

from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.operations.test_run_page import answer_with, told
from tests.console.pages import Page
from tests.support.waiting import wait_for

URL = "/projects/p/operations/one"
RUN = "/projects/p/runs/chain-1"


def test_it_works(alice: Person, shop: Shop) -> None:
    with shop.locked():
        _, start = alice.api.post(shop.endpoint_path(rest="/restart"))["operations"]
        url = f"{shop.url}/operations/{start['id']}"
        run = f"{shop.url}/runs/{start['chain_id']}"
        assert alice.get(url)["Location"] == f"{run}#operation-{start['id']}"
        page = Page(alice.get(run))
        assert page.polls
        assert "Waiting for “Suspend endpoint”" in page.text
        assert alice.post(f"{url}/cancel", {"next": run})["Location"] == run
        page = Page(alice.get(run))
        assert "The operation is cancelled." in page.text
        # The suspend before it cannot be left half-done.
        alice.post(f"{shop.url}/chains/{start['chain_id']}/cancel")
    wait_for(lambda: not Page(alice.get(run)).polls, "the end of the request")
    assert "Result" in Page(alice.get(run)).text
    anew = alice.post(f"{url}/retry")["Location"]
    assert anew != run
    wait_for(lambda: not Page(alice.get(anew)).polls, "the end of the retry")
    page = Page(alice.get(anew))
    assert "OK" in page.text
    assert "by you (retry)" in page.text
    assert f"Retry of operation {start['id']}" in page.text
    assert f"Retried as run {anew.rpartition('/')[2]}" in Page(alice.get(run)).text


def test_a_refusal_shows_the_apis_message(carol: Person, still_shop: Shop) -> None:
    (start,) = (row for row in still_shop.operations() if row["action"] == "start_compute")
    url = f"{still_shop.url}/operations/{start['id']}"
    for verb in ("cancel", "retry"):
        answer = carol.htmx_post(f"{url}/{verb}", at=url)
        told_why = Page(answer).text
        assert "finished" in told_why
        assert "taken" not in told_why


@pytest.mark.parametrize(
    ("status", "offered"),
    [
        ("scheduling", {"cancel"}),
        ("running", {"cancel"}),
        ("cancelling", set()),
        ("finished", set()),
        ("failed", {"retry"}),
        ("cancelled", {"retry"}),
    ],
)
def test_only_possible_actions_are_offered(
    dave: Person, misbehaving: Misbehaving, status: str, offered: set[str]
) -> None:
    answer_with(misbehaving, told(status=status))
    html = dave.get(RUN).content.decode()
    assert {verb for verb in ("cancel", "retry") if f"{URL}/{verb}" in html} == offered
    assert "/chains/" not in html, "one operation is all of its request"


@pytest.mark.parametrize(
    ("statuses", "offered"),
    [
        (("running", "scheduling"), {"cancel"}),
        (("failed", "running"), {"cancel"}),
        (("finished", "cancelling"), set()),
        (("failed", "failed"), {"retry"}),
        (("finished", "cancelled"), {"retry"}),
        (("finished", "finished"), set()),
    ],
)
def test_only_possible_actions_are_offered_for_a_run(
    dave: Person, misbehaving: Misbehaving, statuses: tuple[str, str], offered: set[str]
) -> None:
    first, second = statuses
    answer_with(misbehaving, told(status=first), told(id="two", status=second))
    html = dave.get(RUN).content.decode()
    chain = "/projects/p/chains/chain-1"
    assert {verb for verb in ("cancel", "retry") if f"{chain}/{verb}" in html} == offered


def test_cancelling_asks_for_confirmation_and_is_sent_once(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="running"))
    question = Page(dave.get(f"{URL}/cancel"))
    assert "“Create branch”" in question.text
    assert not any("POST" in path for path in misbehaving.asked)
    assert Page(dave.get(f"{URL}/cancel")).fields["once"] != question.fields["once"]
    answer_with(misbehaving, told(status="cancelled"))
    sent = {"once": question.fields["once"]}
    for _ in range(2):
        answer = dave.post(f"{URL}/cancel", sent)
        assert answer["Location"] == URL
    posts = [path for path in misbehaving.asked if "POST" in path]
    assert posts == ["POST /api/v2/projects/p/operations/one/cancel"] * 2
    # With the same idempotency key, so that the second request gets the first one's answer.
    assert len(misbehaving.once) == 2
    assert len(set(misbehaving.once)) == 1
    assert "The operation is cancelled." in Page(dave.get(RUN)).text


def test_an_operation_that_is_being_cancelled_shows_that(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="cancelling"), told(id="two", status="cancelled"))
    answer = dave.htmx_post(f"{URL}/cancel", at=URL)
    assert "Create branch is being stopped." in Page(answer).text
    assert answer["HX-Trigger"] == "perch:changed"


def test_cancelling_an_ended_operation_asks_for_no_confirmation(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, told(status="finished"))
    page = Page(dave.get(f"{URL}/cancel"))
    assert "“Create branch” has already ended: OK." in page.text
    assert "once" not in page.fields


def test_a_refused_cancel_gives_the_reason_in_place_and_may_be_sent_anew(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.refuse(409, "operation has already ended")
    answer = dave.htmx_post(f"{URL}/cancel", {"once": "first"}, at=URL)
    assert answer.status_code == 422
    page = Page(answer)
    assert "Operation has already ended." in page.text
    # For a day, the API would give the first key the same answer.
    assert page.fields["once"] not in ("", "first")


def test_an_unanswered_request_is_repeated_with_the_same_key(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.refuse(503, "try later")
    assert Page(dave.post(f"{URL}/cancel", {"once": "first"})).fields["once"] == "first"


def test_a_retry_leads_to_the_new_run(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, told(status="failed"))
    html = dave.get(RUN).content.decode()
    once = re.search(r'name="once" value="([\w-]+)"', html)
    assert once
    misbehaving.body = json.dumps({"operations": [told(id="new", chain_id="chain-2")]}).encode()
    answer = dave.post(f"{URL}/retry", {"once": once[1]})
    assert answer["Location"] == "/projects/p/runs/chain-2"
    assert misbehaving.asked[-1] == "POST /api/v2/projects/p/operations/one/retry"
    assert once[1] in misbehaving.once[0]
    answer = dave.htmx_post(f"{URL}/retry", {"once": once[1]}, at=URL)
    assert answer["HX-Redirect"] == "/projects/p/runs/chain-2"
    assert len(set(misbehaving.once)) == 1


def test_a_refused_retry_gives_the_reason_in_place(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.refuse(409, "the branch was deleted")
    answer = dave.htmx_post(f"{URL}/retry", {"next": URL}, at=URL)
    assert "The branch was deleted." in Page(answer).text
    assert 'role="alert"' in answer.content.decode()
    answer = dave.post(f"{URL}/retry", {"next": URL})
    assert answer["Location"] == URL


@pytest.mark.parametrize("rubbish", ["", "x" * 500, "line\nbreak", "é", "\x00"])
def test_an_invented_idempotency_key_does_no_harm(
    dave: Person, misbehaving: Misbehaving, rubbish: str
) -> None:
    misbehaving.body = b'{"operations": []}'
    assert dave.post(f"{URL}/retry", {"once": rubbish})["Location"] == URL
    assert misbehaving.once == []


def test_a_chain_is_cancelled_and_retried(dave: Person, misbehaving: Misbehaving) -> None:
    chain = "/projects/p/chains/chain-1"
    running = told(title="Start endpoint ep-one", status="running")
    misbehaving.body = json.dumps({"operations": [running]}).encode()
    page = Page(dave.get(f"{chain}/cancel?next={URL}"))
    assert "All operations of “Start endpoint ep-one” are cancelled" in page.text
    misbehaving.body = json.dumps({"operations": [told(status="cancelled")] * 2}).encode()
    answer = dave.post(f"{chain}/cancel", {"next": URL})
    assert answer["Location"] == URL
    assert dave.post(f"{chain}/retry")["Location"] == RUN
    posts = [path for path in misbehaving.asked if "POST" in path]
    assert posts == [
        f"POST /api/v2{chain}/cancel",
        f"POST /api/v2{chain}/retry",
    ]


def test_the_addresses_of_buttons_accept_only_post(dave: Person) -> None:
    for path in (f"{URL}/retry", "/projects/p/chains/chain-1/retry"):
        assert dave.get(path).status_code == 405


def test_the_list_cancels_what_can_be_cancelled(dave: Person, misbehaving: Misbehaving) -> None:
    running = told(status="running")
    answer_with(misbehaving, running)
    page = Page(dave.get("/projects/p/operations"))
    assert f'href="{URL}/cancel?next=/projects/p/operations"' in page.html
    # The line that counts them leads to the list, on every page.
    assert 'id="in-progress" href="/projects/p/operations"' in Page(dave.get("/projects/p")).html
    answer_with(misbehaving, running, told(id="two", status="scheduling"))
    page = Page(dave.get("/projects/p/operations"))
    assert "/projects/p/chains/chain-1/cancel?next=" in page.html
    answer_with(misbehaving, told())
    assert "/cancel" not in Page(dave.get("/projects/p/operations")).html
