"""Activity: who did what and when, of a project and of the account."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page

# At half of a second: durations are compared by whole seconds, and would otherwise depend on when
# the tests begin.
NOW = datetime.now(UTC).replace(microsecond=500_000)
USER = {"type": "user", "name": "laptop", "api_key_id": 1, "address": "192.0.2.7"}


def event(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": str(number),
        "type": kind,
        "project_id": "p",
        "branch_id": None,
        "endpoint_id": None,
        "operation_ids": [],
        "actor": USER,
        "at": NOW.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "summary": f"{kind} happened.",
        "changes": {},
        **fields,
    }


def answer_with(api: Misbehaving, *events: dict[str, Any], cursor: str = "") -> None:
    body = {"events": events, "pagination": {"cursor": cursor}, "project": {"id": "p"}}
    api.body = json.dumps(body).encode()


def test_events_are_grouped_by_days_in_the_readers_time_zone(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(
        misbehaving,
        event(2, "endpoint.idle", at="2026-03-06T23:30:00Z"),
        event(1, "endpoint.active", at="2026-03-06T11:30:00Z"),
    )
    dave.browser.cookies["perch_zone"] = "Asia/Tokyo"
    text = Page(dave.get("/activity")).text
    assert text.index("Saturday, 7 March 2026") < text.index("08:30:00")
    assert text.index("Friday, 6 March 2026") < text.index("20:30:00")


def test_it_works(dave: Person, misbehaving: Misbehaving) -> None:
    changes = {
        "autoscaling_limit_max_cu": {"from": 0.5, "to": 1},
        "pooler_enabled": {"from": False, "to": True},
        "pg_settings": {
            "from": {"work_mem": "4MB", "jit": "off"},
            "to": {"jit": "off", "a<b": "1"},
        },
        "description": {"from": None, "to": "new"},
    }
    yesterday = (NOW - timedelta(days=1)).isoformat()
    answer_with(
        misbehaving,
        event(3, "endpoint.updated", changes=changes, endpoint_id="ep-a", operation_ids=["op-1"]),
        event(
            2,
            "endpoint.idle",
            actor={"type": "idleness", "name": "", "address": ""},
            changes={
                "current_state": {"from": "active", "to": "idle"},
                "settings.pg_settings.work_mem": {"from": None, "to": "8MB"},
                "same": {"from": 1, "to": 1},
            },
        ),
        event(1, "project.deleted", at=yesterday),
    )
    page = Page(dave.get("/activity"))
    assert "by API key “laptop” from 192.0.2.7" in page.text
    assert "maximum size 0.5 → 1" in page.text
    assert "pooling no → yes" in page.text
    # Of the settings, only those that changed.
    assert "work_mem 4MB → empty" in page.text
    assert "a<b 1" in page.text
    assert "jit" not in page.text
    assert "description new" in page.text
    assert " work_mem 8MB" in page.text
    # The sentence says it already, or there is no change to list.
    assert "current state" not in page.text
    assert "same" not in page.text
    assert "by auto-suspend" in page.text
    assert (
        page.text.index("Today") < page.text.index("endpoint.idle") < page.text.index("Yesterday")
    )
    assert 'href="/projects/p/endpoints/ep-a"' in page.html
    assert 'href="/projects/p/operations/op-1"' in page.html
    # A deleted resource has no page.
    assert page.html.count('href="/projects/p"') == 2


def test_the_accounts_activity_names_branches(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(
        misbehaving,
        event(3, "branch.updated", branch_id="br-a"),
        event(2, "endpoint.updated", branch_id="br-a", endpoint_id="ep-a"),
        event(1, "branch.updated", branch_id="br-gone"),
    )
    misbehaving.apart = {
        "/projects/p/branches": (200, b'{"branches": [{"id": "br-a", "name": "dev"}]}'),
        "/projects/p/endpoints": (200, b'{"endpoints": [{"id": "ep-a"}]}'),
    }
    html = Page(dave.get("/activity")).html
    for address in ("branches/br-a", "endpoints/ep-a"):
        assert re.search(f'href="/projects/p/{address}" title="[A-Z][a-z]+">dev</a>', html)
    # It is deleted, so it has neither a name nor a page.
    assert "<code>br-gone</code> <small>deleted</small>" in html


def test_a_projects_own_activity(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, event(1, "branch.created"))
    page = Page(dave.get("/projects/p/events"))
    assert "branch.created happened." in page.text
    assert any("/projects/p/events?" in path for path in misbehaving.asked)
    assert 'aria-current="page"' in page.html


def test_the_former_address_redirects_to_the_activity(dave: Person) -> None:
    answer = dave.get("/projects/p/activity?actor=user")
    assert answer["Location"] == "/projects/p/events?actor=user"


def test_filters_and_pages(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, *[event(n, "branch.created") for n in range(100)], cursor="c 2")
    chosen = {"type": "branch.created", "actor": "user", "since": "2026-11-20T08:30", "until": ""}
    page = Page(dave.browser.get("/activity", {**chosen, "cursor": "c 1"}))
    asked, following = [path for path in misbehaving.asked if "/events" in path]
    assert "cursor=c+2" in following
    for part in ("type=branch.created", "actor=user", "since=2026-11-20T08%3A30%3A00Z"):
        assert part in asked
    assert "cursor=c+1" in asked
    assert {name: page.fields[name] for name in chosen} == chosen
    older = page.html.split('">Older')[0].rsplit('href="', 1)[1]
    assert "type=branch.created" in older
    assert older.endswith("cursor=c+2")
    assert "Newest" in page.text


def test_a_thing_is_whole_on_one_page_and_not_on_the_next(
    dave: Person, misbehaving: Misbehaving
) -> None:
    noise = [event(n, "branch.created", summary=f"Branch {n}.") for n in range(200, 299)]
    first = [*noise, SUSPEND[0]]
    second = [*SUSPEND[1:], event(0, "branch.created", summary="The oldest.")]

    def respond(path: str) -> bytes:
        older = "cursor=c2" in path
        cursor = {} if older else {"pagination": {"cursor": "c2"}}
        return json.dumps({"events": second if older else first, **cursor}).encode()

    misbehaving.respond = respond
    page = Page(dave.get("/activity"))
    assert "Suspend requested: Endpoint suspended p ep-a" in lines(page)[-1]
    assert len(lines(page)) == 100
    older = unescape(page.html.split('">Older')[0].rsplit('href="', 1)[1])
    for answer in (dave.get(older), dave.htmx_get(older.replace("/activity?", "/activity-live?"))):
        (line,) = lines(Page(answer))
        assert "The oldest." in line


def test_an_unknown_event_type_stays_chosen_and_has_words(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving, event(1, "mirror.polished_twice", summary="", actor=None))
    page = Page(dave.browser.get("/activity", {"type": "mirror.polished_twice"}))
    assert page.fields["type"] == "mirror.polished_twice"
    assert "Mirror: polished twice" in page.text


def test_what_was_done_with_the_readers_own_key_was_done_by_you(
    dave: Person, misbehaving: Misbehaving
) -> None:
    mine = {**USER, "api_key_id": 7}
    again = {**mine, "type": "retry"}
    misbehaving.apart["/auth"] = (200, b'{"read_only": false, "api_key_id": 7}')
    misbehaving.body = b'{"login": "dave"}'
    dave.post("/sign-in", {"key": "daves-key"})
    answer_with(
        misbehaving,
        event(3, "project.updated", actor=again, changes={"x": {"from": 1, "to": 2}}),
        event(2, "project.updated", actor=mine, changes={"x": {"from": 0, "to": 1}}),
        event(1, "project.created"),
    )
    text = Page(dave.get("/activity")).text
    assert "by you (retry) from 192.0.2.7" in text
    assert "by you from 192.0.2.7" in text
    # The key has the same name, but it is another one.
    assert "by API key “laptop” from 192.0.2.7" in text


def test_passwords_that_were_shown_are_one_line_and_projects_fields_have_words(
    dave: Person, misbehaving: Misbehaving
) -> None:
    same = {"name": {"from": "owner", "to": "owner"}}
    quota, kept = "settings.quota.active_time_seconds", "history_retention_seconds"
    answer_with(
        misbehaving,
        event(4, "role.password_revealed", summary="Shown", changes=same),
        event(
            3,
            "project.updated",
            summary=f'The project "shop" was changed: {quota}, {kept}',
            # The database keeps the fields in an order of its own.
            changes={kept: {"from": 86400, "to": 172800}, quota: {"from": 0, "to": 7200}},
        ),
        event(2, "role.password_revealed", summary="Shown", changes=same),
        event(1, "role.password_revealed", summary="Shown", changes=same),
    )
    page = Page(dave.get("/activity"))
    assert "Shown 3 times" in page.text
    assert page.html.count('id="event-') == 2
    assert "was changed: history retention, quota of active time" in page.text
    assert "quota of active time none → 2 hours" in page.text
    assert "history retention 1 day → 2 days" in page.text


@pytest.mark.thorough
def test_a_change_made_in_the_console_is_listed(alice: Person, shop: Shop) -> None:
    alice.post(f"{shop.url}/rename", {"name": "store"})
    page = Page(alice.get(f"{shop.url}/events?type=project.updated&actor=user"))
    assert "name shop → store" in page.text
    assert "by you from 127.0.0.1" in page.text
    assert "No event matches." in Page(alice.get(f"{shop.url}/events?actor=expiry")).text
    account = Page(alice.get("/activity"))
    assert "name shop → store" in account.text
    assert f'href="{shop.url}"' in account.html
    # The service knows each type of event that the page offers. Types are grouped.
    for group in (value for value in account.options["type"] if "," in value):
        assert alice.browser.get("/activity", {"type": group}).status_code == 200, group


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_events_says_so(
    dave: Person, misbehaving: Misbehaving, status: int
) -> None:
    misbehaving.refuse(status, "no such route")
    answer = dave.get("/activity")
    assert answer.status_code == 404
    page = Page(answer)
    assert "The server does not record events." in page.text
    assert "All projects" in page.text


def test_odd_events_do_no_harm(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(
        misbehaving,
        {"id": "1"},
        event(2, "x", changes={"a": 1, "b": {"from": {"x": 1}, "to": 2}, "c": {}}),
        event(3, "y", changes=[], operation_ids="x", project_id="not a slug!", endpoint_id="e/e"),
        event(4, "z", at="soon", actor={"type": "the_cat", "name": "tom"}),
    )
    page = Page(dave.get("/activity"))
    assert "by the cat tom" in page.text
    assert "Unknown date" in page.text


def test_an_empty_list_says_that_there_is_no_activity(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with(misbehaving)
    assert "No events yet" in Page(dave.get("/activity")).text
    assert "No event matches." in Page(dave.get("/activity?actor=user")).text


def the_rest(number: int, kind: str, seconds: float, *operations: str, **fields: Any) -> Any:
    at = (NOW - timedelta(seconds=seconds)).isoformat()
    told = {"at": at, "operation_ids": list(operations), "endpoint_id": "ep-a", **fields}
    return event(number, kind, **told)


def lines(page: Page) -> list[str]:
    """Return what is on the line of each thing, without its details."""
    found = re.findall(r'<li class="\w+" id="event-\d+">(.*?)<details>', page.html, re.DOTALL)
    return [" ".join(re.sub("<[^>]+>", " ", line).split()) for line in found]


def ended(number: int, seconds: float, operation: str, action: str, error: str = "") -> Any:
    kind = "operation.failed" if error else "operation.finished"
    about = {"id": operation, "action": action, "error": error or None}
    return the_rest(number, kind, seconds, operation, operation=about, actor=None)


SUSPEND = [
    ended(3, 1.0, "o-1", "suspend_compute"),
    the_rest(2, "endpoint.idle", 1.0, "o-1"),
    the_rest(1, "endpoint.suspend_requested", 2.2, "o-1"),
]


def test_the_events_of_one_request_are_one_line(dave: Person, misbehaving: Misbehaving) -> None:
    answer_with(misbehaving, *SUSPEND)
    page = Page(dave.get("/activity"))
    (line,) = lines(page)
    assert re.fullmatch(
        r"Suspend requested: Endpoint suspended p ep-a 1\.2 s by laptop \d\d:\d\d:\d\d", line
    )
    # The details have each event, in order.
    details = page.html.split("<details>")[-1]
    told = [details.index(f"{one} happened") for one in ("suspend_requested", "endpoint.idle")]
    assert told == sorted(told)
    assert "The operation “Suspend endpoint” has finished" in details
    assert 'id="event-1"' in page.html


def test_a_thing_takes_as_long_as_its_operations(dave: Person, misbehaving: Misbehaving) -> None:
    told = {**SUSPEND[0]["operation"], "duration_ms": 847}
    answer_with(misbehaving, {**SUSPEND[0], "operation": told}, *SUSPEND[1:])
    (line,) = lines(Page(dave.get("/activity")))
    assert " 847 ms by laptop" in line


def test_events_and_operations_have_the_same_durations(alice: Person, shop: Shop) -> None:
    shop.done(alice.api.post(shop.endpoint_path(rest="/restart")))
    line = lines(Page(alice.get(f"{shop.url}/events")))[0]
    took = re.search(r"(\d+ ms|[\d.]+ s) by ", line)
    assert took, line
    row = Page(alice.get(f"{shop.url}/operations")).rows()[0]
    assert "Restart endpoint" in row
    assert f"| {took[1]} |" in row


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [
                ended(2, 0, "o", "start_compute", "no memory"),
                the_rest(1, "endpoint.start_requested", 1, "o"),
            ],
            ["Start failed no memory p ep-a 1.0 s by laptop"],
        ),
        (
            [
                ended(2, 0, "o", "suspend_compute"),
                the_rest(1, "endpoint.idle", 0, "o", actor={"type": "idleness"}),
            ],
            ["Endpoint suspended p ep-a by Auto-suspend"],
        ),
        (
            [
                ended(2, 0, "o", "start_compute"),
                the_rest(1, "endpoint.active", 0.1, "o", actor={"type": "client", "name": "app"}),
            ],
            ["Endpoint started p ep-a 100 ms by app"],
        ),
        # The check has found that the compute hangs, and has stopped it.
        (
            [
                ended(2, 0, "o", "check_availability", "no answer"),
                the_rest(1, "endpoint.idle", 1, "o"),
            ],
            ["Check failed no answer p ep-a 1.0 s by laptop"],
        ),
        # It is still under way.
        (
            [the_rest(1, "endpoint.start_requested", 0, "o")],
            ["endpoint.start_requested happened. p ep-a by laptop"],
        ),
        # The request of two operations comes last, and joins what they told; others are apart.
        (
            [
                ended(5, 0, "o-2", "start_compute"),
                the_rest(4, "branch.created", 0.2, "o-9", endpoint_id=None, branch_id="br-a"),
                ended(3, 0.5, "o-1", "create_branch"),
                the_rest(2, "endpoint.created", 2, "o-1", "o-2"),
                the_rest(1, "role.password_revealed", 3, endpoint_id=None),
            ],
            [
                "endpoint.created happened. p ep-a 2.0 s by laptop",
                "branch.created happened. p br-a by laptop",
                "role.password_revealed happened. p by laptop",
            ],
        ),
        # A restore suspends and starts the endpoint too, and makes a branch of the replaced data.
        (
            [
                ended(7, 0, "o-2", "start_compute"),
                the_rest(6, "endpoint.active", 0.1, "o-2", branch_id="br-a"),
                the_rest(5, "branch.created", 0.2, "o-1", endpoint_id=None, branch_id="br-kept"),
                the_rest(4, "branch.restored", 0.3, "o-1", endpoint_id=None, branch_id="br-a"),
                ended(3, 0.4, "o-1", "create_branch"),
                the_rest(2, "endpoint.idle", 0.5, "o-0", branch_id="br-a"),
                the_rest(
                    1,
                    "branch.restore_requested",
                    1,
                    "o-0",
                    "o-1",
                    "o-2",
                    endpoint_id=None,
                    branch_id="br-a",
                ),
            ],
            ["branch.restored happened. p br-a 1.0 s by laptop"],
        ),
        # What repeats is one line, unless something else came in between or was changed. A password
        # that is shown is one line of a day in any case.
        (
            [
                the_rest(9, "role.password_revealed", 1, endpoint_id=None),
                the_rest(8, "role.password_revealed", 2, endpoint_id=None),
                the_rest(7, "role.password_revealed", 3, endpoint_id=None),
                the_rest(6, "role.created", 4, endpoint_id=None),
                the_rest(5, "role.password_revealed", 5, endpoint_id=None),
                the_rest(4, "role.password_revealed", 6, endpoint_id=None, actor=None),
                the_rest(3, "project.updated", 7, endpoint_id=None, changes={"name": {"to": "x"}}),
                the_rest(2, "project.updated", 8, endpoint_id=None, changes={"name": {"to": "y"}}),
            ],
            [
                "role.password_revealed happened. 4 times p by laptop",
                "role.created happened. p by laptop",
                "role.password_revealed happened. p",
                "project.updated happened. p by laptop",
                "project.updated happened. p by laptop",
            ],
        ),
        # On the dashboard, the event of the end may come without that of the request.
        (
            [ended(2, 0, "o", "start_compute", "no memory")],
            ["Start failed no memory p ep-a"],
        ),
    ],
)
def test_a_line_tells_the_outcome_of_what_was_requested(
    dave: Person, misbehaving: Misbehaving, events: list[Any], expected: list[str]
) -> None:
    answer_with(misbehaving, *events)
    shown = lines(Page(dave.get("/activity")))
    assert [re.sub(r"^[\w ]+: | \d\d:\d\d:\d\d$", "", line) for line in shown] == expected
