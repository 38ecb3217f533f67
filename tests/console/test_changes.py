"""The live channel: what it sends, which API calls it makes, and how it ends."""

import itertools
import re
import time
from typing import Any

import pytest
from django.test import Client as Browser

from console.api.changes import ChangeCalls, _tells_of_change
from console.api.servers import default_server
from console.api.transport import Transport
from console.live import channel as stream
from console.live import watches
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.listening import changed, listening, watching
from tests.selection import first_of
from tests.support.relay import relay
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


def test_it_works(alice: Person, shop: Shop) -> None:
    endpoint = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"
    with listening(alice, f"{shop.url}/changes") as received:
        # A page without a mark may have missed a change before the watch began.
        wait_for(lambda: changed(received) == 1, "the beginning")
        assert "data: here" in received[0]
        alice.api.finish(alice.api.post(f"{endpoint}/suspend"))
        wait_for(lambda: changed(received) > 1, "what has changed", timeout=3)
        alice.api.finish(alice.api.post(f"{endpoint}/start"))


def test_reading_is_not_reported_as_a_change(carol: Person, still_shop: Shop) -> None:
    def shown() -> int:
        query = {"type": "role.password_revealed", "limit": 100}
        return len(carol.api.get(f"/projects/{still_shop.id}/events", **query)["events"])

    with listening(carol, f"{still_shop.url}/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        before = shown()
        # The reader asks for the password, which records an event.
        carol.api.get(still_shop.branch_path(rest="/roles/neondb_owner/reveal_password"))
        wait_for(lambda: shown() > before, "the event")
        time.sleep(1)
        assert changed(received) == 1


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        (b": still here", False),
        (b"id: 1.2", False),
        (b'data: {"type": "role.password_revealed"}', False),
        (b'data: {"type": "role.created"}', True),
        (b'data: {"type": {"of": []}}', True),
        (b"data: {}", True),
        (b'data: ["role.password_revealed"]', True),
        (b"data: {", True),
        (b"data:" + b"[" * 100_000, True),
        (b"data: \xff", True),
    ],
)
def test_any_other_content_of_an_event_is_a_change(line: bytes, tells: bool) -> None:
    assert _tells_of_change(line) is tells


def test_a_broken_stream_is_reported(settings: Any, alice: Person, shop: Shop) -> None:
    """The page is notified, so that it reads again and shows what it finds."""
    with relay(settings.MANAGEMENT_API_URL) as api:
        settings.MANAGEMENT_API_URL = api.url
        with listening(alice, f"{shop.url}/changes") as received:
            wait_for(lambda: changed(received) == 1, "the beginning")
            api.is_away = True
            wait_for(lambda: changed(received) == 2, "the outage to be reported", timeout=3)
            api.is_away = False
            wait_for(lambda: changed(received) == 3, "the end of the outage to be reported")


@pytest.mark.thorough
def test_the_accounts_channel_reports_changes_of_all_projects(alice: Person) -> None:
    with listening(alice, "/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        alice.api.new_project(name="fresh", wait=False)
        wait_for(lambda: changed(received) > 1, "the new project", timeout=3)


def test_a_stream_reports_the_projects_of_other_windows_too(
    alice: Person, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = alice.api.new_project(name="other")["project"]["id"]
    # What does not name a project and its mark is ignored.
    also = f"also={other}~&also=~&also=no&also=a/b~1"
    with listening(alice, f"{shop.url}/changes?{also}") as received:
        wait_for(lambda: changed(received) >= 3, "the beginning of all three")
        sent = "".join(received)
        assert re.search(r"^id: .+\ndata: changed$", sent, re.M)
        assert f"data: changed {other}~" in sent
        assert "data: changed ~" in sent
        assert "a/b" not in sent
        before = len(received)
        alice.api.patch(f"/projects/{other}", {"project": {"name": "another"}})
        wait_for(lambda: f"data: changed {other}~" in "".join(received[before:]), "its change")
        assert "data: changed\n" not in "".join(received[before:])
    monkeypatch.setattr(watches, "MOST_WATCHES", 1)
    with listening(alice, f"{shop.url}/changes?also={other}~") as received:
        wait_for(lambda: f"data: full {other}\n" in "".join(received), "the refusal")
        wait_for(lambda: changed(received) == 1, "the page's own project")


def test_a_page_that_is_up_to_date_is_not_notified(carol: Person, still_shop: Shop) -> None:
    with listening(carol, f"{still_shop.url}/changes") as first:
        wait_for(lambda: changed(first) == 1, "the beginning")
        html = carol.get(still_shop.url).content.decode()
        url = html.split('data-changes="')[1].split('"')[0]
        assert "?seen=" in url
        answer = carol.get(url)
        assert b"data: here" in next(answer.streaming_content)
        answer.close()
        mark = first[1].split("id: ")[1].split("\n")[0]
        assert url.endswith(mark)


@pytest.mark.thorough
def test_many_pages_share_one_watch(settings: Any, carol: Person, still_shop: Shop) -> None:
    with relay(settings.MANAGEMENT_API_URL) as api:
        settings.MANAGEMENT_API_URL = api.url
        url = f"{still_shop.url}/changes"
        with listening(carol, url) as one, listening(carol, url) as two:
            wait_for(lambda: changed(one) and changed(two), "the beginning")
            assert api.asked_for("/events") == 1
            # The request for the service's status is independent of this, and is made every few
            # seconds.
            assert [one for one in api.asked if one != "GET /status"] == [
                f"GET /projects/{still_shop.id}/events"
            ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body", first_of([b"", b"{", b"[]", b'{"operations": 1}', b"data: {}\n\n"], count=2)
)
@pytest.mark.parametrize("status", [200, 401, 403, 404, 429, 500])
def test_each_different_answer_of_the_api_is_reported_once(
    dave: Person,
    misbehaving: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
) -> None:
    for name in ("LOOK_EVERY", "AFTER_A_BREAK", "AFTER_TOO_MANY"):
        monkeypatch.setattr(watches, name, 0.02)
    misbehaving.status, misbehaving.body = status, body
    for url in ("/changes", "/projects/p/changes"):
        if status == 404 and "/p/" in url and body.startswith(b'{"'):
            # The API answers that there is no such project.
            continue
        misbehaving.asked.clear()
        with listening(dave, url) as received:
            wait_for(lambda: len(misbehaving.asked) > 8, "some polls")
            assert changed(received) == 1


@pytest.mark.thorough
def test_signing_out_ends_the_channel(
    alice: Person, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.1)
    with listening(alice, f"{shop.url}/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        alice.post("/sign-out")
        wait_for(lambda: received[-1] == "", "its end")
    assert alice.get(f"{shop.url}/changes", Accept="text/event-stream").status_code == 401


def test_a_watch_without_readers_ends(
    dave: Person, misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(watches, "LINGERS", 0.1)
    with watching(ChangeCalls(Transport("daves-key", default_server())), "p") as watch:
        assert watch
        wait_for(lambda: watch.mark, "the beginning")
    wait_for(lambda: watch.has_ended, "the end")
    asked = len(misbehaving.asked)
    time.sleep(0.1)
    assert len(misbehaving.asked) == asked
    # The next reader gets a new watch.
    with watching(ChangeCalls(Transport("daves-key", default_server())), "p") as another:
        assert another is not watch


def test_readers_beyond_the_limit_get_no_stream(
    dave: Person, misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MOST_READERS", 1)
    calls = ChangeCalls(Transport("daves-key", default_server()))
    with watching(calls, "p") as one, watching(calls, "q") as two:
        assert one
        assert two is None
        # Their pages poll, as they do without a stream.
        for path in ("/changes", "/projects/p/changes", "/projects/q/changes"):
            assert dave.get(path).status_code == 429
        other = ChangeCalls(Transport("another-key", default_server()))
        with watching(other, "p") as three:
            assert three
    answer = dave.get("/projects/p/changes")
    assert list(itertools.islice(answer.streaming_content, 1))
    answer.close()


def test_the_watches_of_a_key_are_limited(
    dave: Person, misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MOST_WATCHES", 2)
    calls = ChangeCalls(Transport("a-key", default_server()))
    with watching(calls, "p") as p, watching(calls, "q") as q:
        assert p
        assert q
        with watching(calls, "r") as r, watching(calls, "p") as again:
            assert r is None
            assert again is p
        p.end()
        with watching(calls, "r") as r:
            assert r


@pytest.mark.thorough
def test_a_project_that_does_not_exist_is_not_watched(
    dave: Person, misbehaving: Misbehaving
) -> None:
    """Otherwise anybody could start any number of watches by inventing ids."""
    misbehaving.refuse(404, "project not found")
    with listening(dave, "/projects/p/changes") as received:
        wait_for(lambda: received[-1] == "", "its end")
        # An open page of a deleted project is notified, and finds the project missing.
        assert changed(received) == 1
    asked = len(misbehaving.asked)
    assert 0 < asked < 6


@pytest.mark.thorough
def test_no_channel_reports_changes_of_another_account(
    alice: Person, bob: Person, shop: Shop
) -> None:
    with listening(alice, f"{shop.url}/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        html = bob.get("/").content.decode()
        assert "seen=" not in html.split("data-changes")[1].split(">")[0]
        with listening(bob, f"{shop.url}/changes") as bobs:
            # His answer is that there is no such project.
            wait_for(lambda: changed(bobs) == 1, "the beginning")
            assert len(watches._watches) >= 2


def test_a_visitor_gets_no_channel(visitor: Browser) -> None:
    answer = visitor.get("/changes", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 401
