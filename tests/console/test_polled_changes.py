"""The live channel of servers without a stream of events, which the console polls."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from console.api.changes import ChangeCalls
from console.api.servers import default_server
from console.api.transport import Transport
from console.live import watches
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.listening import changed, listening
from tests.support.relay import Relay, relay
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def plain_api(settings: Any, alice: Person) -> Iterator[Relay]:
    """Alice's console at a server of this API without events."""
    with relay(settings.MANAGEMENT_API_URL) as api:
        api.missing = {"/events"}
        settings.MANAGEMENT_API_URL = api.url
        yield api


@pytest.mark.thorough
def test_a_server_without_events_is_polled(
    plain_api: Relay, alice: Person, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LOOK_EVERY", 0.2)
    endpoint = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"
    with listening(alice, f"{shop.url}/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        wait_for(lambda: plain_api.asked_for("/operations") > 6, "some polls")
        # A new project's size may still be measured.
        before = changed(received)
        assert before <= 3
        alice.api.finish(alice.api.post(f"{endpoint}/suspend"))
        wait_for(lambda: changed(received) > before, "what has changed")
    alice.api.finish(alice.api.post(f"{endpoint}/start"))


@pytest.mark.thorough
def test_polling_reports_a_change_soon_enough(plain_api: Relay, alice: Person, shop: Shop) -> None:
    """A change has to appear within three seconds, which include reading the page."""
    dev = f"/projects/{shop.id}/branches/{shop.dev_id}"
    with listening(alice, f"{shop.url}/changes") as received:
        wait_for(lambda: changed(received), "the beginning")
        for name in ("renamed", "dev"):
            before = changed(received)
            alice.api.patch(dev, {"branch": {"name": name}})
            wait_for(lambda: changed(received) > before, "the branch's new name", timeout=2)  # noqa: B023


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the watches a hundred times as fast."""
    for name in ("LOOK_EVERY", "AFTER_A_BREAK", "AFTER_TOO_MANY", "AFTER_NONE", "MOST_AFTER_ONE"):
        monkeypatch.setattr(watches, name, getattr(watches, name) / 100)


@pytest.mark.thorough
@pytest.mark.usefixtures("hurried")
def test_a_server_without_events_is_asked_for_them_less_and_less_often(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.apart["/events"] = (404, b"")
    with listening(dave, "/projects/p/changes"):
        wait_for(lambda: misbehaving.asked_for("/branches") > 60, "many polls")
        first = misbehaving.asked_for("/events")
        assert 3 <= first <= 9
        wait_for(lambda: misbehaving.asked_for("/branches") > 120, "as many polls again")
        assert misbehaving.asked_for("/events") - first <= 2


@pytest.mark.thorough
@pytest.mark.usefixtures("hurried")
def test_a_server_that_had_events_is_soon_asked_for_them_again(
    dave: Person, misbehaving: Misbehaving
) -> None:
    """Also if it has answered several times that it has none, as a proxy before it may."""
    stream = (200, b"data: {}\n\n")
    misbehaving.headers = {"Content-Type": "text/event-stream"}
    misbehaving.apart["/events"] = stream
    with listening(dave, "/projects/p/changes") as received:
        wait_for(lambda: changed(received), "the beginning")
        misbehaving.apart["/events"] = (404, b"")
        wait_for(lambda: misbehaving.asked_for("/branches") > 100, "many polls")
        misbehaving.apart["/events"] = stream
        before = changed(received)
        wait_for(lambda: changed(received) > before, "the stream", timeout=2)


@pytest.mark.thorough
@pytest.mark.usefixtures("hurried")
def test_a_server_that_asks_for_a_pause_is_polled_less_often(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.refuse(429)
    with listening(dave, "/projects/p/changes") as received:
        wait_for(lambda: changed(received), "the beginning")
        wait_for(lambda: misbehaving.asked_for("/branches") > 4, "some polls")
        before = misbehaving.asked_for("/branches")
        time.sleep(1)
        # At intervals of LOOK_EVERY, there would be eighty.
        assert misbehaving.asked_for("/branches") - before <= 10
        misbehaving.status = 200
        wait_for(lambda: misbehaving.asked_for("/branches") - before > 40, "polling again")


def test_an_account_is_polled_a_few_projects_at_a_time(
    dave: Person, misbehaving: Misbehaving
) -> None:
    projects = ", ".join(f'{{"id": "p{number}"}}' for number in range(20))
    misbehaving.body = f'{{"projects": [{projects}], "endpoints": []}}'.encode()
    calls = ChangeCalls(Transport("daves-key", default_server()))
    for turn in range(3):
        calls.look("", turn)
    asked = [path.split("?")[0] for path in misbehaving.asked if "endpoints" in path]
    assert len(asked) == 20
    assert len(set(asked)) == 20


def test_a_stream_without_line_ends_is_replaced_by_polling(
    dave: Person, misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.api.changes.LONGEST_LINE", 1000)
    misbehaving.headers = {"Content-Type": "text/event-stream"}
    misbehaving.body = b"x" * 100_000
    with listening(dave, "/projects/p/changes") as received:
        wait_for(lambda: changed(received) == 1, "a poll instead")


@pytest.mark.thorough
def test_an_api_outage_and_its_end_are_reported(
    plain_api: Relay, alice: Person, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is notified, so that it reads again and shows what it finds."""
    monkeypatch.setattr(watches, "LOOK_EVERY", 0.1)
    with listening(alice, f"{shop.url}/changes") as received:
        wait_for(lambda: changed(received) == 1, "the beginning")
        plain_api.is_away = True
        wait_for(lambda: changed(received) == 2, "the outage to be reported")
        plain_api.is_away = False
        wait_for(lambda: changed(received) == 3, "the end of the outage to be reported")
