"""A project's settings and usage: what the page shows, and the forms that change them."""

import json
from typing import Any

import pytest

from console.forms.api_requests import QUOTA_NAMES
from console.projects.usage import QUOTAS
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.waiting import wait_for

GB = 10**9


def test_the_settings_page_describes_the_project(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/settings"))
    for words in (
        *("shop", still_shop.id, "local", "Rename…", "Delete…", "Logical replication Off"),
        *("Any address", "Public addresses Accepted", "Outbound connections Allowed"),
        *("Compute time", "no limit", "The server's defaults"),
    ):
        assert words in page.text
    # A new project's use is measured after some seconds.
    url = f"{still_shop.url}/settings"
    wait_for(lambda: "Usage by branch" in Page(carol.get(url)).text, "the first measurement")
    page = Page(carol.get(url))
    for used in ("Active time", "Compute time", "Written data", "Data transfer", "Size"):
        assert f'data-label="{used}"' in page.html
    assert page.row("main")


def test_renaming(alice: Person, shop: Shop) -> None:
    assert Page(alice.get(f"{shop.url}/rename")).fields["name"] == "shop"
    answer = alice.post(f"{shop.url}/rename", {"name": "<i>store</i>"})
    assert answer["Location"] == f"{shop.url}/settings"
    page = Page(alice.get(shop.url))
    assert "<i>store</i>" in page.text
    assert "<i>store" not in page.html


def test_renaming_to_nothing_is_refused(carol: Person, still_shop: Shop) -> None:
    assert carol.post(f"{still_shop.url}/rename", {"name": "   "}).status_code == 422
    assert carol.post(f"{still_shop.url}/rename", {"name": "x" * 300}).status_code == 422
    assert "shop" in Page(carol.get(still_shop.url)).text


def test_the_time_for_which_history_is_kept_is_shown_and_changed(alice: Person) -> None:
    project = alice.api.new_project(wait=False, name="shop")["project"]
    url = f"/projects/{project['id']}"
    assert "Kept for 1 day" in Page(alice.get(f"{url}/settings")).text
    form = Page(alice.get(f"{url}/history"))
    assert form.fields["retention"] == "86400"
    refused = alice.post(f"{url}/history", {"retention": "99999999"})
    assert refused.status_code == 422
    assert 'id="id_retention_error"' in refused.content.decode()
    assert alice.post(f"{url}/history", {"retention": "0"}).status_code == 302
    assert alice.api.get(url)["project"]["history_retention_seconds"] == 0
    assert "Not kept" in Page(alice.get(f"{url}/settings")).text
    alice.post(f"{url}/history", {"retention": "5400"})
    page = Page(alice.get(f"{url}/history"))
    assert page.options["retention"] == ["0", "3600", "5400", "21600", "86400", "604800", "2592000"]
    assert "Kept for 90 minutes" in Page(alice.get(f"{url}/settings")).text


def test_a_project_without_history_retention_shows_none(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = b'{"project": {"id": "p"}}'
    assert "History" not in Page(dave.get("/projects/p/settings")).text


def test_which_hosts_commits_wait_for_is_shown_and_changed(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    assert (
        "Each commit is on The disk of its host Change" in Page(alice.get(f"{url}/settings")).text
    )
    form = Page(alice.get(f"{url}/durability"))
    assert form.options["durability"] == ["host", "region"]
    assert form.fields["durability"] == "host"
    refused = alice.post(f"{url}/durability", {"durability": "region"})
    assert refused.status_code == 422
    assert "has only one host" in Page(refused).text
    # What does not change is not sent.
    assert alice.post(f"{url}/durability", {"durability": "host"}).status_code == 302
    assert "durability" not in settings_of(alice, new_project)


def settings_of(person: Person, project_id: str) -> Any:
    return person.api.get(f"/projects/{project_id}")["project"]["settings"]


@pytest.fixture
def new_project(alice: Person) -> str:
    return str(alice.api.new_project(wait=False, name="shop")["project"]["id"])


def test_allowed_addresses_are_changed(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    form = Page(alice.get(f"{url}/addresses"))
    assert form.fields["ips"] == ""
    assert "The console sees your address as 127.0.0.1." in form.text
    assert "without_mine" not in form.fields
    listed = "127.0.0.0/8\n\n  2001:db8::1-2001:db8::9 "
    sent = {"ips": listed, "protected_branches_only": "on"}
    assert alice.post(f"{url}/addresses", sent).status_code == 302
    settings = settings_of(alice, new_project)
    assert settings["allowed_ips"]["ips"] == ["127.0.0.0/8", "2001:db8::1-2001:db8::9"]
    assert settings["allowed_ips"]["protected_branches_only"] is True
    assert settings["block_public_connections"] is False
    shown = Page(alice.get(f"{url}/settings")).text
    assert "127.0.0.0/8 , 2001:db8::1-2001:db8::9 . Only protected branches" in shown
    form = Page(alice.get(f"{url}/addresses"))
    assert form.fields["ips"].split() == settings["allowed_ips"]["ips"]
    assert form.fields["protected_branches_only"] == "on"
    blocked = {"ips": "", "block_public_connections": "on", "block_outbound_connections": "on"}
    answer = alice.post(f"{url}/addresses", blocked)
    if answer.status_code == 422:  # a host without nftables
        assert "outbound" in answer.content.decode()
        answer = alice.post(f"{url}/addresses", {"ips": "", "block_public_connections": "on"})
    assert answer.status_code == 302
    settings = settings_of(alice, new_project)
    assert settings["allowed_ips"]["ips"] == []
    assert settings["block_public_connections"] is True
    assert "Public addresses Refused" in Page(alice.get(f"{url}/settings")).text


@pytest.mark.parametrize(
    ("listed", "is_out"),
    [("192.0.2.1", True), ("127.0.0.1", False), ("127.0.0.0/8", False), ("::1", True),
     ("127.0.0.0-127.0.0.9", False), ("127.0.0.2 - 127.0.0.9", True), ("rubbish", True)],
)  # fmt: skip
def test_a_list_without_ones_own_address_must_be_confirmed(
    alice: Person, new_project: str, listed: str, is_out: bool
) -> None:
    url = f"/projects/{new_project}/addresses"
    answer = alice.post(url, {"ips": listed})
    if not is_out:
        assert answer.status_code == 302
        return
    assert answer.status_code == 422
    page = Page(answer)
    assert "Your own address 127.0.0.1 is not in the list" in page.text
    assert page.fields["ips"] == listed
    answer = alice.post(url, {"ips": listed, "without_mine": "on"})
    if listed == "rubbish":
        assert answer.status_code == 422
        assert 'id="id_ips_error" class="error" role="alert">rubbish: ' in answer.content.decode()
    else:
        assert answer.status_code == 302
        assert settings_of(alice, new_project)["allowed_ips"]["ips"] == [listed]


def test_quotas_are_changed_in_hours_and_gigabytes(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    form = Page(alice.get(f"{url}/quotas"))
    assert [name for name in form.fields if name in QUOTA_NAMES] == list(QUOTA_NAMES)
    assert "Used in this period: 0" in form.text
    sent = {"compute_time_seconds": "1.5", "logical_size_bytes": "2", "active_time_seconds": "0"}
    assert alice.post(f"{url}/quotas", sent).status_code == 302
    quota = settings_of(alice, new_project)["quota"]
    assert quota["compute_time_seconds"] == 5400
    assert quota["logical_size_bytes"] == 2 * GB
    # The others were not changed, and so not sent.
    assert {name for name in QUOTA_NAMES if name in quota} == {*sent}
    shown = Page(alice.get(f"{url}/settings")).text
    assert "Compute time 0 s of 1.5 h" in shown
    form = Page(alice.get(f"{url}/quotas"))
    assert form.fields["compute_time_seconds"] == "1.5"
    assert form.fields["active_time_seconds"] == ""
    refused = alice.post(f"{url}/quotas", {"compute_time_seconds": "99999999999999999999"})
    assert refused.status_code == 422
    assert 'id="id_compute_time_seconds_error"' in refused.content.decode()


def test_only_the_quotas_that_were_changed_are_sent(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    given = {"written_data_bytes": 123_456_789_012_345, "compute_time_seconds": 3601}
    alice.api.patch(url, {"project": {"settings": {"quota": given}}})
    fields = {
        name: value
        for name, value in Page(alice.get(f"{url}/quotas")).fields.items()
        if name.removeprefix("initial-") in QUOTA_NAMES
    }
    fields |= {"compute_time_seconds": "", "active_time_seconds": "2"}
    assert alice.post(f"{url}/quotas", fields).status_code == 302
    quota = settings_of(alice, new_project)["quota"]
    assert quota["written_data_bytes"] == given["written_data_bytes"]
    assert (quota["compute_time_seconds"], quota["active_time_seconds"]) == (0, 7200)
    again = Page(alice.get(f"{url}/quotas")).fields
    alice.post(f"{url}/quotas", again)
    assert "Nothing was changed." in Page(alice.get(f"{url}/settings")).text


def test_the_forms_quotas_are_the_apis() -> None:
    assert tuple(one.name for one in QUOTAS) == QUOTA_NAMES


def test_defaults_of_new_endpoints_are_changed(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    form = Page(alice.get(f"{url}/defaults"))
    sent = {
        **{name: value for name, value in form.fields.items() if name.startswith("initial-")},
        "min_cu": "0.5",
        "max_cu": "2",
        "suspend_timeout": "900",
    }
    assert alice.post(f"{url}/defaults", sent).status_code == 302
    defaults = alice.api.get(url)["project"]["default_endpoint_settings"]
    assert defaults["autoscaling_limit_min_cu"] == 0.5
    assert defaults["suspend_timeout_seconds"] == 900
    assert Page(alice.get(f"{url}/defaults")).fields["max_cu"] == "2"
    shown = Page(alice.get(f"{url}/settings")).text
    assert "Compute size 0.5 to 2 CU Suspend after 15 min" in shown


def test_logical_replication_is_turned_on_once(alice: Person, new_project: str) -> None:
    url = f"/projects/{new_project}"
    assert "cannot be turned off" in Page(alice.get(f"{url}/replication")).text
    assert alice.post(f"{url}/replication").status_code == 302
    assert settings_of(alice, new_project)["enable_logical_replication"] is True
    page = Page(alice.get(f"{url}/settings"))
    assert "Logical replication On" in page.text
    assert "turn-on-replication" not in page.html


def test_another_servers_project_is_shown_as_far_as_it_says(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = json.dumps(
        {
            "project": {
                "id": "p",
                "settings": {"audit_log_level": "base", "allowed_ips": {"ips": None}},
                "compute_time_seconds": 7200,
            },
            "branches": [{"id": "br-1", "name": "main", "protected": True, "logical_size": 5e6}],
        }
    ).encode()
    page = Page(dave.get("/projects/p/settings"))
    assert "Audit log level base" in page.text
    assert "Any address" in page.text
    assert "Compute time 2 h no limit" in page.text
    assert "Largest branch 5.0 MB" in page.text
    assert "Active time 0" not in page.text
    assert 'Protected branches</dt><dd><a href="/projects/p/branches/br-1">main</a>' in page.html


PROJECT = {
    "id": "p",
    "name": "shop",
    "active_time_seconds": 2280,
    "settings": {"quota": {"active_time_seconds": 360}},
}


def test_a_quota_below_the_present_use_must_be_confirmed(
    dave: Person, misbehaving: Misbehaving
) -> None:
    misbehaving.body = json.dumps({"project": PROJECT}).encode()
    url = "/projects/p/quotas"
    assert "Suspend the endpoints now" not in Page(dave.get(url)).text
    refused = dave.post(url, {"active_time_seconds": "0.1"})
    assert refused.status_code == 422
    words = "The project has used more already (active time: 38 min 0 s)"
    assert words in Page(refused).text
    assert not misbehaving.sent
    confirmed = dave.post(url, {"active_time_seconds": "0.1", "suspend_now": "on"})
    assert confirmed.status_code == 302
    assert dave.post(url, {"active_time_seconds": "1"}).status_code == 302


def test_a_used_up_quota_is_shown_where_endpoints_do_not_start(
    dave: Person, misbehaving: Misbehaving
) -> None:
    lists = ("branches", "endpoints", "operations")
    misbehaving.body = json.dumps({"project": PROJECT} | {one: [] for one in lists}).encode()
    words = "the quota of 6 min 0 s is used up (38 min 0 s), so endpoints are suspended"
    assert words in Page(dave.get("/projects/p")).text
    page = Page(dave.get("/projects/p/settings"))
    assert "38 min 0 s of 6 min 0 s, used up" in page.text
    refusal = {"code": "ACTIVE_TIME_QUOTA_EXCEEDED", "message": "Upgrade your plan. limit:360"}
    misbehaving.status, misbehaving.body = 423, json.dumps(refusal).encode()
    dave.post("/projects/p/endpoints/ep-a/start", {"next": "/api-keys"})
    misbehaving.status, misbehaving.body = 200, b"[]"
    page = Page(dave.get("/api-keys"))
    assert "The active time quota is used up. Raise it in the project's settings" in page.text
    assert "plan" not in page.text


def test_an_unchanged_form_says_that_it_changed_nothing(
    dave: Person, misbehaving: Misbehaving
) -> None:
    ips = {"allowed_ips": {"ips": ["127.0.0.1"]}}
    misbehaving.body = json.dumps({"project": {"id": "p", "settings": ips}}).encode()
    url = "/projects/p/addresses"
    answer = dave.post(url, {"ips": "127.0.0.1"})
    assert answer.status_code == 302
    assert not misbehaving.asked_for("PATCH")
    assert "Nothing was changed." in Page(dave.get("/projects/p/settings")).text
    dave.post(url, {"ips": "127.0.0.1\n192.0.2.2"})
    assert misbehaving.asked_for("PATCH") == 1
    assert "Allowed addresses changed." in Page(dave.get("/projects/p/settings")).text
