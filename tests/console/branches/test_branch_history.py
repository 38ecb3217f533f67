"""A branch's history: its band, and the page on which a past moment is chosen."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from django.forms import ValidationError
from django.utils import timezone

from console.api.resources.history import History
from console.branches.history_band import Band, band, summary, time_and_day
from console.branches.moments import read_moment
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

# Later than any test runs, so that it counts as now. A whole minute, because the band of a day ends
# at one: otherwise places would depend on the second at which the tests begin.
NOW = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
KOLKATA = ZoneInfo("Asia/Kolkata")
BEGIN = NOW - timedelta(hours=24)
URL = "/projects/p/branches/br-a/history"
AT = "2026-01-31T14:03:00.123456Z"
MOMENT = {
    "branch_id": "br-a",
    "timestamp": AT,
    "lsn": "0/1A2B3C4D",
    "last_commit": {"at": "2026-01-31T14:02:59.000001Z", "lsn": "0/1A2B3B00"},
    "next_commit": {"at": "2026-01-31T14:05:00.5Z", "lsn": "0/1A2B3D00"},
    "base": {"at": "2026-01-31T13:00:00Z", "lsn": "0/1A000000"},
    "replay_bytes": 2_800_000,
}


def hours(count: float) -> datetime:
    """Return a time so many hours after the beginning."""
    return BEGIN + timedelta(hours=count)


def told(**fields: Any) -> dict[str, Any]:
    return {
        "retention_seconds": 86400,
        "earliest": BEGIN.isoformat(),
        "latest": NOW.isoformat(),
        "gaps": [],
        "bases": [{"at": hours(at).isoformat(), "lsn": "0/1", "bytes": 3} for at in (0, 6, 12)],
        "log_bytes": 48_000_000,
        "base_bytes": 90_000_000,
        "disk_bytes": 51_000_000,
    } | fields


def history(**fields: Any) -> History:
    return History.read(told(**fields))


def drawn(**fields: Any) -> Band:
    found = band(history(**fields))
    assert found
    return found


def gap(since: float, until: float | None = None) -> dict[str, Any]:
    ends = {"until": hours(until).isoformat()} if until else {}
    return {"since": hours(since).isoformat(), "reason": "log lost", **ends}


@pytest.fixture
def kept(misbehaving: Misbehaving, dave: Person) -> Misbehaving:
    """A server with one branch, of which there is a history."""
    branch = {"id": "br-a", "name": "main", "default": True}
    child = {"id": "br-b", "name": "dev", "parent_id": "br-a"}
    empty = ("endpoints", "operations", "databases", "roles", "snapshots", "events")
    misbehaving.body = json.dumps(
        {
            "project": {"id": "p", "name": "shop"},
            "branch": branch,
            "branches": [branch, child],
            **{name: [] for name in empty},
        }
    ).encode()
    tell(misbehaving, told())
    return misbehaving


def tell(server: Misbehaving, history: Any, moment: Any = MOMENT) -> None:
    server.apart |= {
        "/history": (200, json.dumps({"history": history}).encode()),
        "/history/resolve": (200, json.dumps({"moment": moment}).encode()),
    }


def refuse(server: Misbehaving, end: str, field: str, message: str) -> None:
    errors = [{"field": field, "code": "OUTSIDE_HISTORY", "message": message}]
    server.apart[end] = (422, json.dumps({"message": message, "errors": errors}).encode())


def test_a_moment_is_shown_before_anything_is_changed(dave: Person, kept: Misbehaving) -> None:
    on_branch = Page(dave.get("/projects/p/branches/br-a"))
    assert f'href="{URL}"' in on_branch.html
    assert "plus 51 MB of history" in on_branch.text
    page = Page(dave.get(f"{URL}?moment={AT}"))
    for words in (
        "As of 2026-01-31 14:03:00.123 UTC",
        "Last commit included 2026-01-31 14:02:59.000 UTC 0/1A2B3B00",
        "Next commit, not included 2026-01-31 14:05:00.500 UTC 0/1A2B3D00",
        "2.8 MB, up to 0/1A2B3C4D , on the full copy of 2026-01-31 13:00:00 UTC",
    ):
        assert words in page.text
    assert page.fields["moment"] == AT
    asked = [one for one in kept.asked if "resolve" in one]
    assert asked == [f"GET /api/v2{URL}/resolve?timestamp={quote(AT)}"]
    # One commit earlier and one later.
    for moment in ("2026-01-31T14:02:59Z", "2026-01-31T14:05:00.500000Z"):
        assert f'href="{URL}?moment={quote(moment)}"' in page.html
    part = Page(dave.htmx_get(f"{URL}?moment=0/1a2b3c4d", target="found"))
    assert "At LSN 0/1A2B3C4D" in part.text
    assert "Breadcrumb" not in part.html
    assert kept.asked_for("resolve?lsn=0%2F1A2B3C4D") == 1


def test_a_past_moment_is_waited_for_longer_than_usual(
    dave: Person, kept: Misbehaving, settings: Any
) -> None:
    settings.MANAGEMENT_API_TIMEOUT = 0.3
    usual = kept.body

    def respond(path: str) -> bytes:
        if "/resolve" in path or "/compare_schema" in path:
            time.sleep(0.6)
        return usual

    kept.respond = respond
    databases = {"databases": [{"name": "neondb", "owner_name": "owner"}]}
    kept.apart["/databases"] = (200, json.dumps(databases).encode())
    kept.apart["/compare_schema"] = (200, b'{"diff": ""}')
    assert "0/1A2B3B00" in Page(dave.get(f"{URL}?moment={AT}")).text
    compared = Page(dave.get(f"/projects/p/branches/br-a/schema?base=br-a&moment={AT}"))
    assert "No differences" in compared.text


def test_the_summary_and_the_band() -> None:
    found = drawn(
        gaps=[gap(3, 6)],
        commits=[
            {"since": hours(-9).isoformat(), "seconds": 600, "count": 5000},
            {"since": hours(12).isoformat(), "seconds": 600, "count": 9},
            {"since": hours(18).isoformat(), "seconds": 600, "count": 0},
        ],
        restores=[{"at": hours(6).isoformat()}],
        removals=[{"at": hours(18).isoformat(), "files": 2}, {"at": hours(-5).isoformat()}],
    )
    words = f"a gap from {time_and_day(hours(3))} to {time_and_day(hours(6))} (log lost)"
    assert found.summary == (
        f"From {time_and_day(BEGIN)} to now, 3 full copies, 48 MB of log, 51 MB on the disk; "
        f"{words}."
    )
    assert found.kept == "M0 14h1440v36H0z"
    assert found.gaps == "M180 14h180v36H180z"
    assert found.commits == "M720 50v-30h9v30z"
    assert [float(x[:-1]) for x in found.bases] == [0, 25, 50]
    assert [float(x[:-1]) for x in (*found.restores, *found.removals)] == [25, 75]
    assert found.steps * found.step >= 24 * 3600
    assert found.steps <= 1500


def test_a_time_whose_commits_are_not_read_yet_is_not_shown_as_one_without_commits() -> None:
    found = drawn(commits_until=hours(18).isoformat())
    assert found.kept == "M0 14h1080v36H0z"
    assert found.unread == "M1080 14h360v36H1080z"
    assert found.summary.endswith(f"; commits since {time_and_day(hours(18))} are not read yet.")
    for until in (NOW.isoformat(), hours(25).isoformat(), None):
        found = drawn(commits_until=until)
        assert (found.unread, found.kept) == ("", "M0 14h1440v36H0z")
        assert "not read" not in found.summary


def test_a_history_that_has_ended_says_until_when() -> None:
    found = drawn(latest=hours(10).isoformat(), gaps=[gap(10)])
    assert f"to {time_and_day(hours(10))}, 3 full copies" in found.summary
    assert found.summary.endswith(f"a gap from {time_and_day(hours(10))} on (log lost).")


@pytest.mark.parametrize(
    ("retention", "words"),
    [
        (0, "No history: history_retention_seconds is 0."),
        (
            86400,
            "No history yet. It begins with the first full copy of the data.",
        ),
    ],
)
def test_without_history(dave: Person, kept: Misbehaving, retention: int, words: str) -> None:
    none = {"retention_seconds": retention, "gaps": [], "bases": [], "log_bytes": 0}
    tell(kept, none)
    assert band(History.read(none)) is None
    assert summary(History.read(none)) == words
    on_branch, own = Page(dave.get("/projects/p/branches/br-a")), Page(dave.get(URL))
    assert words in on_branch.text
    assert words in own.text
    assert "moment" not in own.fields
    assert "Go back to a moment…" not in on_branch.text


@pytest.mark.parametrize(("state", "polls"), [("active", True), ("idle", False)])
def test_the_page_looks_for_a_history_that_is_about_to_begin(
    dave: Person, kept: Misbehaving, state: str, polls: bool
) -> None:
    """No event tells of the first full copy, which is taken after the first start."""
    assert kept.body is not None
    answers = json.loads(kept.body)
    answers["endpoints"] = [{"id": "e", "branch_id": "br-a", "current_state": state}]
    kept.body = json.dumps(answers).encode()
    tell(kept, {"retention_seconds": 86400, "gaps": [], "bases": [], "log_bytes": 0})
    assert Page(dave.get("/projects/p/branches/br-a")).polls == polls


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_history(dave: Person, kept: Misbehaving, status: int) -> None:
    for end in ("/history", "/history/resolve"):
        kept.apart[end] = (status, b"{}")
    assert "History" not in Page(dave.get("/projects/p/branches/br-a")).text
    answer = dave.get(URL)
    assert answer.status_code == 404
    assert "Not supported by this server" in Page(answer).text


def test_a_refused_moment_says_why_and_stays_typed(dave: Person, kept: Misbehaving) -> None:
    why = "timestamp is outside of the branch's history, which goes from 1:00 to 2:00"
    refuse(kept, "/history/resolve", "timestamp", why)
    page = Page(dave.get(f"{URL}?moment=2020-01-01 10:00"))
    assert "This moment is outside of the branch's history, which goes from 1:00 to" in page.text
    assert page.fields["moment"] == "2020-01-01 10:00"
    assert "Create branch…" not in page.text
    kept.asked.clear()
    page = Page(dave.get(f"{URL}?moment=yesterday"))
    assert "Enter a time such as" in page.text
    assert page.fields["moment"] == "yesterday"
    assert not kept.asked_for("resolve")


def test_tables_that_were_removed_can_be_brought_back(dave: Person, kept: Misbehaving) -> None:
    at = hours(5).replace(microsecond=0)
    removals = [{"at": at.isoformat(), "files": 4}, {"at": hours(2).isoformat(), "files": 1}]
    tell(kept, told(removals=removals))
    page = Page(dave.get(URL))
    assert "Go to just before" in page.row(f"{at:%H:%M:%S}.000")
    before = (at - timedelta(microseconds=1)).isoformat().replace("+00:00", "Z")
    # What was removed is what only the schema of just before has.
    compare = f"/projects/p/branches/br-a/schema?base=br-a&amp;moment={quote(before)}"
    assert f'href="{compare}">Which tables?' in page.html
    assert f'href="{URL}?moment={quote(before)}"' in page.html
    assert "Tables removed" in page.text


def test_the_page_looks_for_the_newest_removals(dave: Person, kept: Misbehaving) -> None:
    at = hours(5).replace(microsecond=0)
    shown = Page(dave.get(URL))
    assert f'hx-get="{URL}?newest=1" hx-trigger="load"' in shown.html
    assert "No commit in the log that was read so far has removed tables." in shown.text
    usual = kept.apart.pop("/history")[1]

    def respond(path: str) -> bytes:
        if not path.endswith("/history"):
            return body
        # The server has read the newest log once it has resolved a moment.
        is_read = kept.asked_for("/resolve") > 0
        removed = told(removals=[{"at": at.isoformat(), "files": 3}])
        return json.dumps({"history": removed}).encode() if is_read else usual

    body, kept.respond = kept.body, respond
    part = Page(dave.htmx_get(f"{URL}?newest=1", target="undos"))
    assert "| 3 | Which tables?" in part.row(f"{at:%H:%M:%S}.000")
    assert part.html.strip().startswith("<section")
    assert 'hx-trigger="load"' not in part.html
    assert kept.asked_for(f"/resolve?timestamp={quote(NOW.isoformat().replace('+00:00', 'Z'))}")
    # Without scripts, a link has the same effect.
    kept.asked.clear()
    assert "| 3 | Which tables?" in Page(dave.get(f"{URL}?newest=1")).row(f"{at:%H:%M:%S}.000")
    kept.respond = None
    tell(kept, told())
    refuse(kept, "/history/resolve", "timestamp", "more log is to be replayed")
    part = Page(dave.htmx_get(f"{URL}?newest=1", target="undos"))
    assert "The newest changes could not be looked for: " in part.text
    assert "No commit in the log that was read so far has removed tables." in part.text


def test_a_branch_of_a_moment(dave: Person, kept: Misbehaving) -> None:
    form = f"{URL}/new-branch?moment={AT}"
    page = Page(dave.get(form))
    assert page.fields["timestamp"] == AT
    # It is shown as on other pages, in the reader's time zone.
    dave.browser.cookies["perch_zone"] = "Asia/Tokyo"
    shown = Page(dave.get(form))
    assert f'title="{AT}"' in shown.html
    assert 'value="2026-01-31 23:03:00.123 JST"' in shown.html
    assert shown.fields["timestamp"] == AT
    # What the form says of the moment is not what counts.
    answer = dave.post(form, {"name": "then", "lifetime": "", "timestamp": "1999-01-01"})
    assert answer.status_code == 302
    assert answer["Location"] == "/projects/p/branches/br-a"
    assert json.loads(kept.sent[-1]) == {
        "branch": {"name": "then", "parent_id": "br-a", "parent_timestamp": AT},
        "endpoints": [{"type": "read_write"}],
    }
    dave.post(f"{URL}/new-branch?moment=0/1A2B3C4D", {"name": "then"})
    assert json.loads(kept.sent[-1])["branch"]["parent_lsn"] == "0/1A2B3C4D"


def test_a_branch_of_a_moment_that_is_refused(dave: Person, kept: Misbehaving) -> None:
    refuse(kept, "/branches", "branch.parent_timestamp", "it is not in the history any more")
    answer = dave.post(f"{URL}/new-branch?moment={AT}", {"name": "then", "timestamp": AT})
    page = Page(answer)
    assert answer.status_code == 422
    assert page.fields["name"] == "then"
    assert page.fields["timestamp"] == AT
    assert 'id="id_timestamp_error"' in page.html
    assert "It is not in the history any more." in page.text


def test_a_restore_to_a_moment(dave: Person, kept: Misbehaving) -> None:
    form = f"{URL}/restore?moment={AT}"
    page = Page(dave.get(form))
    assert page.fields["preserve_under_name"].startswith("main-until-")
    assert "The child branches (dev) become its children." in page.text
    answer = dave.post(form, {"timestamp": AT, "preserve_under_name": ""})
    assert answer.status_code == 422
    assert not kept.sent
    dave.post(form, {"timestamp": AT, "preserve_under_name": "before"})
    assert json.loads(kept.sent[-1]) == {
        "source_branch_id": "br-a",
        "source_timestamp": AT,
        "preserve_under_name": "before",
    }


def test_a_moment_is_queried_through_an_endpoint_of_its_own(
    dave: Person, kept: Misbehaving
) -> None:
    kept.apart["/time_travel"] = (201, b'{"endpoint": {"id": "ep-past"}, "operations": []}')
    answer = dave.post(f"{URL}/query?moment={AT}")
    assert json.loads(kept.sent[-1]) == {"timestamp": AT}
    query = f"branch=br-a&past_endpoint=ep-past&moment={quote(AT)}"
    assert answer["Location"] == f"/projects/p/query?{query}"
    kept.apart["/time_travel"] = (404, b"{}")
    refused = dave.post(f"{URL}/query?moment={AT}")
    assert "The server cannot query past moments." in Page(refused).text


def test_without_a_moment_one_is_to_be_chosen_first(dave: Person, kept: Misbehaving) -> None:
    for query in ("", "?moment=yesterday"):
        for end in ("new-branch", "restore"):
            assert dave.get(f"{URL}/{end}{query}")["Location"] == URL
            answer = dave.post(f"{URL}/{end}{query}", {"preserve_under_name": "x"})
            assert answer["Location"] == URL
        assert dave.post(f"{URL}/query{query}")["Location"] == URL
    assert "Choose a moment on the band, or type one." in Page(dave.get(URL)).text
    assert not kept.sent


def test_the_schema_is_compared_with_that_of_a_moment(dave: Person, kept: Misbehaving) -> None:
    kept.apart["/databases"] = (200, b'{"databases": [{"name": "neondb"}]}')
    kept.apart["/compare_schema"] = (200, b'{"diff": "@@ -1 +1 @@\\n+gone\\n"}')
    page = Page(dave.get(f"/projects/p/branches/br-a/schema?base=br-a&moment={AT}"))
    assert "0 lines only in main as of 2026-01-31 14:03:00.123 UTC ." in page.text
    (asked,) = [one for one in kept.asked if "compare_schema" in one]
    assert f"base_branch_id=br-a&base_timestamp={quote(AT)}" in asked
    wrong = Page(dave.get("/projects/p/branches/br-a/schema?base=br-b&moment=soon"))
    assert "Enter a time such as" in wrong.text
    assert wrong.fields["moment"] == "soon"
    # What the server says of the moment is beside its field, in the reader's words and zone.
    message = "base_timestamp is outside of the history, which begins at 2026-01-31T10:00:00Z"
    refuse(kept, "/compare_schema", "base_timestamp", message)
    dave.browser.cookies["perch_zone"] = "Asia/Tokyo"
    refused = Page(dave.get(f"/projects/p/branches/br-a/schema?base=br-a&moment={AT}"))
    words = "This moment is outside of the history, which begins at 2026-01-31 19:00:00 JST."
    assert words in refused.text
    assert 'id="id_moment_error"' in refused.html


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("2026-01-31 14:03", "2026-01-31T14:03:00Z"),
        (" 2026-01-31T14:03:00.5+02:00 ", "2026-01-31T12:03:00.500000Z"),
        ("2026-01-31 14:03:00 +02", "2026-01-31T12:03:00Z"),
        ("2026-01-31 14:03 utc", "2026-01-31T14:03:00Z"),
        ("2026-01-31 14:03 Z", "2026-01-31T14:03:00Z"),
        ("1a/2b", "1A/2B"),
    ],
)
def test_moments_as_people_type_them(typed: str, text: str) -> None:
    assert read_moment(typed).text == text


def test_a_time_without_a_zone_is_in_the_readers() -> None:
    with timezone.override(KOLKATA):
        assert read_moment("2026-01-31 14:03").text == "2026-01-31T08:33:00Z"
        at = (datetime.now(KOLKATA) - timedelta(hours=23)).replace(microsecond=0)
        assert read_moment(f"{at:%H:%M:%S}").at == at


def test_a_time_without_a_day_is_the_last_that_has_passed() -> None:
    now = datetime.now(UTC)
    for ago in (timedelta(minutes=2), timedelta(hours=23)):
        at = (now - ago).replace(microsecond=0)
        for typed in (f"{at:%H:%M:%S}", f"{at.astimezone(KOLKATA):%H:%M:%S} +05:30"):
            assert read_moment(typed).at == at


@pytest.mark.parametrize(
    "typed",
    ["", "25:03", "14", "now", "0/", "0/123456789", "0001-01-01 00:00+02", "9999-12-31 23:59:59Z"],
)
def test_what_is_no_moment(typed: str) -> None:
    with pytest.raises(ValidationError):
        read_moment(typed)


@pytest.mark.parametrize(
    "fields",
    [
        {"earliest": None},
        {"bases": None, "gaps": None, "log_bytes": "much"},
        {"commits": [{}, {"since": "soon"}, {"since": BEGIN.isoformat(), "seconds": 1e300}]},
        {"commits": [{"since": BEGIN.isoformat(), "seconds": 1e15, "count": -1}]},
        {"removals": [{"at": "9998-12-31T00:00:00Z"}], "restores": [{}]},
        {"latest": (BEGIN - timedelta(hours=1)).isoformat()},
    ],
)
def test_odd_histories_are_shown(dave: Person, kept: Misbehaving, fields: Any) -> None:
    tell(kept, told(**fields), moment={})
    assert dave.get("/projects/p/branches/br-a").status_code == 200
    assert dave.get(f"{URL}?moment={AT}").status_code == 200
