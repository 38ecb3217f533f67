"""An endpoint's activity: its last day and week, from events or from operations alone."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from console.api.resources.endpoints import Endpoint
from console.endpoints.activity import FAILED, SLEPT, WOKE, History, Turn, activity
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.endpoints.test_connecting import string_in
from tests.console.pages import Page
from tests.support.waiting import wait_for

NOW = datetime.now(UTC)


def hours_ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def band_of(
    *turns: Turn,
    state: str = "idle",
    created: float = 1000,
    since: float = 168,
    name: str = "The last 24 hours",
) -> Any:
    """Return the band of the last day."""
    endpoint = Endpoint.read(
        {"id": "e", "current_state": state, "created_at": hours_ago(created).isoformat()}
    )
    bands = activity(endpoint, History(turns, hours_ago(since)), now=NOW).bands
    return next(band for band in bands if band.name == name)


def woke(hours: float, wait: int | None = None) -> Turn:
    return Turn(hours_ago(hours), WOKE, took_ms=wait, is_wait=wait is not None)


def test_it_works() -> None:
    band = band_of(woke(12, 300), Turn(hours_ago(10), SLEPT), woke(2, 100), state="active")
    assert band.summary == (
        "Active for 4 h 0 min, started twice, first connections waited 200 ms (median), "
        "at most 300 ms, no failures."
    )
    assert band.known == "M0 12h1440v20H0z"
    assert band.active == "M720 12h120v20H720zM1320 12h120v20H1320z"
    assert band.wakes == "M720 2v7M1320 2v7"
    assert band.failures == ""
    assert [tick.words for tick in band.ticks] == ["24 h", "18 h", "12 h", "6 h", "now"]


def test_a_run_that_began_before_the_strip_is_drawn_from_its_edge() -> None:
    band = band_of(woke(30), Turn(hours_ago(23), SLEPT))
    assert band.active == "M0 12h60v20H0z"
    assert "no starts" in band.summary
    assert band_of(state="active").active == "M0 12h1440v20H0z"
    assert band_of(state="idle").active == ""


def test_unknown_periods_are_not_guessed() -> None:
    band = band_of(woke(2), since=6)
    assert band.known == "M1080 12h360v20H1080z"
    assert "Earlier: unknown." in band.summary
    young = band_of(woke(1), state="active", created=1.5)
    assert young.known == "M1350 12h90v20H1350z"


def test_an_empty_strip_gives_the_reason() -> None:
    unknown, young = band_of(woke(2), since=6), band_of(woke(1), state="active", created=1.5)
    assert unknown.before
    assert (unknown.before.words, unknown.before.x) == ("Unknown", "37.500%")
    assert young.before
    assert young.before.words == "Before this endpoint existed"
    assert "Earlier: before this endpoint existed." in young.summary
    assert band_of(woke(2), since=20).before is None


def test_a_new_endpoint_has_a_strip_of_an_hour() -> None:
    band = band_of(woke(0.5), state="active", created=0.75, name="The last hour")
    assert band.known == "M360 12h1080v20H360z"
    assert band.active == "M720 12h720v20H720z"
    assert [tick.words for tick in band.ticks] == ["60 min", "45 min", "30 min", "15 min", "now"]
    with pytest.raises(StopIteration):
        band_of(woke(0.5), created=4, name="The last hour")
    # Longer strips would only be empty.
    with pytest.raises(StopIteration):
        band_of(woke(0.5), created=0.75)
    with pytest.raises(StopIteration):
        band_of(woke(0.5), created=20, name="The last 7 days")


def test_failures_are_shown_in_words_and_in_the_strip() -> None:
    band = band_of(Turn(hours_ago(6), FAILED, what="start_compute has failed"))
    assert band.failures == "M1080 2v36"
    assert "failed once" in band.summary


def test_the_picture_of_many_short_runs_is_small() -> None:
    turns = [
        Turn(hours_ago(24 - place / 100), kind=WOKE if place % 2 else SLEPT)
        for place in range(2400)
    ]
    band = band_of(*turns)
    assert len(band.active) + len(band.wakes) < 30_000


def test_a_wake_by_a_client_is_shown_with_its_duration(alice: Person, shop: Shop) -> None:
    endpoint = f"/projects/{shop.id}/endpoints/{shop.endpoint_id}"
    alice.api.finish(alice.api.post(f"{endpoint}/suspend"))
    uri = string_in(alice.post(f"{shop.endpoint_url}/connect", {"style": "url"}))
    psycopg.connect(uri).close()

    def is_told() -> bool:
        page = Page(alice.get(shop.endpoint_url))
        return any("Started" in row and "client neondb_owner" in row for row in page.rows())

    wait_for(is_told, "the wake to stand in the table")
    page = Page(alice.get(shop.endpoint_url))
    assert "first connection" in page.text
    assert 'role="img" aria-label="The last hour: Active for' in page.html
    assert "Suspended" in page.text


def test_without_events_the_activity_comes_from_operations(
    dave: Person, misbehaving: Misbehaving
) -> None:
    def operation(number: int, action: str, status: str, hours: float) -> dict[str, Any]:
        at = hours_ago(hours).isoformat()
        return {
            "id": f"op-{number}",
            "action": action,
            "status": status,
            "endpoint_id": "e",
            "created_at": at,
            "updated_at": at,
            "total_duration_ms": 400,
        }

    misbehaving.body = json.dumps(
        {
            "project": {"id": "p"},
            "endpoint": {"id": "e", "current_state": "active"},
            "branches": [],
            "operations": [
                operation(3, "start_compute", "finished", 1),
                operation(2, "suspend_compute", "failed", 3),
                operation(1, "suspend_compute", "finished", 5),
            ],
        }
    ).encode()
    page = Page(dave.get("/projects/p/endpoints/e"))
    assert "Active for 1 h 0 min" not in page.text
    assert "started once" in page.text
    assert "failed once" in page.text
    assert "Failed: Suspend endpoint" in page.text


def test_what_keeps_it_active_says_if_there_may_be_more_sessions(
    dave: Person, misbehaving: Misbehaving
) -> None:
    for count in (99, 100):
        told = {"sessions": [{"role": "r", "database": "d", "state": "idle"}] * count}
        misbehaving.body = json.dumps(told).encode()
        page = Page(dave.get("/projects/p/endpoints/ep-a/sessions"))
        assert ("At most 100 sessions are listed" in page.text) == (count == 100)


def test_activity_that_cannot_be_read_is_reported(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.body = (
        b'{"operations": [], "endpoint": {"id": "e"}, "branches": [], "project": {"id": "p"}}'
    )
    for status, is_told in ((500, True), (404, False)):
        misbehaving.apart = {"/events": (status, b'{"message": "the disk is full"}')}
        text = Page(dave.get("/projects/p/endpoints/e")).text
        assert ("the disk is full" in text) is is_told
        assert "The last 24 hours" in text
