"""The filters of the operations' list and of activity."""

import json
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from console.forms.fields import FilterForm, LifetimeFields
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.operations.test_run_page import told
from tests.console.pages import Page

CHOSEN = {
    "action": "create_branch",
    "status": "failed,cancelled",
    "endpoint_id": "ep-a",
    "branch_id": "br-a",
    "initiator": "user",
    "since": "2026-11-20T08:30",
    "until": "2026-11-21T08:30",
}


def test_it_works(carol: Person, still_shop: Shop) -> None:
    url = f"{still_shop.url}/operations"

    def found(**chosen: str) -> list[str]:
        rows = Page(carol.browser.get(url, chosen)).rows()
        return [row.split(" | ")[0] for row in rows]

    first = "Create the project with branch main Create first branch : OK Start endpoint : OK"
    assert found(action="start_compute") == [first]
    assert found(status="finished", branch_id=still_shop.dev_id) == ["Create branch dev"]
    assert found(endpoint_id=still_shop.endpoint_id, initiator="user") == [first]
    assert found(initiator="client") == []
    assert found(since="2999-01-01T00:00") == []
    assert len(found(until="2999-01-01T00:00")) == 2
    # The service knows every value that is offered.
    options = Page(carol.get(url)).options
    for name, values in options.items():
        for value in values:
            assert carol.browser.get(url, {name: value}).status_code == 200, value
    page = Page(carol.browser.get(url, {"action": "teleport"}))
    assert "start_compute" in page.text
    assert "All projects" in page.text


@pytest.fixture
def listing(misbehaving: Misbehaving) -> Misbehaving:
    body = {
        "operations": [told(id=f"o-{number}") for number in range(25)],
        "pagination": {"cursor": "c 1"},
        "branches": [{"id": "br-a", "name": "main"}],
        "endpoints": [{"id": "ep-a"}],
        "project": {"id": "p"},
    }
    misbehaving.body = json.dumps(body).encode()
    return misbehaving


def asked_for_operations(api: Misbehaving) -> dict[str, str]:
    # The other request is for the timeline.
    path = next(path for path in api.asked if "/operations" in path and "limit=25" in path)
    sent = {name: value for name, (value,) in parse_qs(urlsplit(path).query).items()}
    assert sent.pop("whole_chains") == "true"
    return sent


def test_all_filters_are_sent_and_kept(dave: Person, listing: Misbehaving) -> None:
    answer = dave.browser.get("/projects/p/operations", CHOSEN)
    sent = asked_for_operations(listing)
    assert sent.pop("limit") == "25"
    assert sent == CHOSEN | {"since": "2026-11-20T08:30:00Z", "until": "2026-11-21T08:30:00Z"}
    page = Page(answer)
    # The form, the later pages and the live region keep what was chosen.
    assert {name: page.fields[name] for name in CHOSEN} == CHOSEN
    assert "status=failed%2Ccancelled" in answer.context["polling"].region_url
    older = page.html.split('id="older" href="')[1].split('"')[0]
    assert "cursor=c+1" in older
    assert "endpoint_id=ep-a" in older
    assert "<details" in page.html
    assert "open" in page.html.split('class="filters"')[1][:10]
    assert "Filtered" in page.text


def test_times_are_in_the_zone_that_their_label_says(dave: Person, listing: Misbehaving) -> None:
    path, chosen = "/projects/p/operations", {"since": "2026-11-20T08:30"}
    for zone, sent in (("", "2026-11-20T08:30:00Z"), ("Asia/Tokyo", "2026-11-19T23:30:00Z")):
        dave.browser.cookies["perch_zone"] = zone
        listing.asked.clear()
        page = Page(dave.browser.get(path, chosen))
        assert asked_for_operations(listing)["since"] == sent
        assert page.fields["since"] == chosen["since"]
        assert f"Since ({zone or 'UTC'})" in page.text
    # An address with a zone means the same to all.
    page = Page(dave.browser.get(path, {"since": sent}))
    assert page.fields["since"] == chosen["since"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2026-11-20T08:30:00Z", "2026-11-20T08:30"),
        ("2026-11-20T08:30:15Z", "2026-11-20T08:30:15"),
        ("2026-11-20T08:30:00+09:00", "2026-11-19T23:30"),
    ],
)
def test_a_time_stays_in_its_field_on_later_pages(
    dave: Person, listing: Misbehaving, given: str, shown: str
) -> None:
    """Their addresses hold the time with its zone, which a browser's field does not accept."""
    page = Page(dave.browser.get("/projects/p/operations", {"since": given}))
    assert page.fields["since"] == shown


def test_without_filters_none_is_sent(dave: Person, listing: Misbehaving) -> None:
    page = Page(dave.browser.get("/projects/p/operations", dict.fromkeys(CHOSEN, "")))
    assert asked_for_operations(listing) == {"limit": "25"}
    assert page.options["status"][:2] == ["", "scheduling,running,cancelling"]
    assert "error" not in page.options["status"]
    assert page.options["branch_id"] == ["", "br-a"]
    assert "Filtered" not in page.text


def test_an_unknown_value_stays_chosen(dave: Person, listing: Misbehaving) -> None:
    page = Page(dave.browser.get("/projects/p/operations", {"branch_id": "br-deleted"}))
    assert asked_for_operations(listing)["branch_id"] == "br-deleted"
    assert page.fields["branch_id"] == "br-deleted"


@pytest.mark.parametrize("given", ["soon", "9999-12-31T23:59:00-09:00"])
def test_an_invalid_time_is_reported_beside_its_field(
    dave: Person, listing: Misbehaving, given: str
) -> None:
    page = Page(dave.browser.get("/projects/p/operations", {"since": given, "status": "failed"}))
    sent = asked_for_operations(listing)
    assert "since" not in sent
    assert sent["status"] == "failed"
    assert page.fields["since"] == given
    assert "Enter a valid date/time" in page.text


def test_no_filters_are_offered_if_the_server_ignores_them(
    dave: Person, listing: Misbehaving
) -> None:
    body = json.loads(listing.body)
    for operation in body["operations"]:
        del operation["chain_id"]
    listing.body = json.dumps(body).encode()
    page = Page(dave.browser.get("/projects/p/operations", {"status": "failed"}))
    assert "Filter" not in page.text
    assert "Filtered" not in page.text


def test_no_match_is_distinguished_from_no_operation(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = (
        b'{"operations": [], "endpoints": [], "branches": [], "project": {"id": "p"}}'
    )
    page = Page(dave.browser.get("/projects/p/operations", {"status": "failed"}))
    assert "No operation matches." in page.text
    assert "status" in page.options
    assert "No operations yet" in Page(dave.get("/projects/p/operations")).text


@pytest.mark.parametrize("zone", ["Asia/Karachi", "America/New_York", "UTC"])
@pytest.mark.parametrize(
    "typed",
    ["9999-12-31T23:59:00Z", "9999-12-31T23:59", "0001-01-01T00:00:00Z", "0001-01-01T00:00"],
)
def test_a_time_at_an_end_of_the_calendar_is_refused_and_kept(zone: str, typed: str) -> None:
    """In another zone it may be beyond the end."""
    with timezone.override(ZoneInfo(zone)):
        form = FilterForm({"since": typed})
        assert not form.is_valid()
        assert f'value="{typed}"' in str(form["since"])
        expiry = LifetimeFields({"lifetime": "at", "until": typed})
        assert list(expiry.errors) == ["until"]
