"""Each setting of endpoints is declared once in the console. Every part of the console uses it."""

import json
import re
from typing import Any

import pytest

from console.api.resources.endpoints import Endpoint
from console.endpoints.forms import (
    EndpointForm,
    EndpointSettingsForm,
    SettingFields,
    SizeSelect,
    SuspendSelect,
)
from console.forms.api_requests import BODIES, FIELDS_OF_ATTRIBUTES, Body, body_of
from console.forms.endpoint_settings import ENDPOINT_SETTINGS, EndpointSetting, setting_rows
from console.forms.fields import WORDS_OF_ATTRIBUTES
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

DECLARED = pytest.mark.parametrize("one", ENDPOINT_SETTINGS, ids=lambda one: one.attribute)
KINDS = {bool: "boolean", int: "integer", float: "number"}
PRESENT = {
    "autoscaling_limit_min_cu": 0.25,
    "autoscaling_limit_max_cu": 2,
    "suspend_timeout_seconds": 90,
    "ignore_heartbeats": True,
    "pooler_enabled": True,
    "pooler_mode": "transaction",
}
# The prefix of the hidden fields with the values that the page was made with.
START = "initial-"
INVENTED = EndpointSetting(
    attribute="seats", kind=int, label="Seats", words="seats", heading="Seats"
)


def endpoint(**returned: Any) -> Endpoint:
    return Endpoint.read({"id": "ep-a", "branch_id": "br-a", **returned})


@DECLARED
def test_forms_errors_events_and_requests_have_the_setting(one: EndpointSetting) -> None:
    field = EndpointForm().fields[one.field]
    assert field.label == one.label
    assert (one.field in EndpointSettingsForm().fields) == one.is_in_change_form
    assert FIELDS_OF_ATTRIBUTES.get(one.attribute, one.attribute) == one.field
    assert WORDS_OF_ATTRIBUTES[one.attribute] == one.words
    for form in ("endpoint_create", "endpoint_settings"):
        assert BODIES[form].fields[one.field] == f"endpoint.{one.attribute}"


@DECLARED
@pytest.mark.parametrize("schema", ["NewEndpoint", "EndpointChanges", "EndpointOut"])
def test_perchs_document_describes_the_setting(
    document: Any, one: EndpointSetting, schema: str
) -> None:
    known = document["components"]["schemas"][schema]["properties"][one.attribute]
    shapes = known.get("anyOf", [known])
    assert KINDS[one.kind] in [shape["type"] for shape in shapes]


def test_the_page_shows_the_values() -> None:
    assert setting_rows(endpoint(**PRESENT)) == [
        ("Compute size", "0.25 to 2 CU"),
        ("Suspend after", "90 s"),
        ("Heartbeats", "Ignored"),
        ("Pooling", "All connections, transaction mode"),
    ]
    assert INVENTED.row(endpoint(seats=3)) == "3"


def test_only_changed_values_are_sent() -> None:
    form = EndpointSettingsForm()
    form.fill_in(endpoint(**PRESENT))
    assert list(form.fields) == [
        "min_cu",
        "max_cu",
        "suspend_timeout",
        "ignore_heartbeats",
        "pg_settings",
    ]
    page = {f"{start}{name}": form.initial[name] for name in form.fields for start in ("", START)}
    for changed, sent in (
        ({}, {}),
        ({"max_cu": "4"}, {"autoscaling_limit_max_cu": 4}),
        ({"max_cu": "", "suspend_timeout": "-1"}, {"suspend_timeout_seconds": -1}),
    ):
        form = EndpointSettingsForm({**page, **changed})
        assert form.is_valid()
        assert body_of(form, "endpoint_settings").get("endpoint", {}) == sent


def test_a_declaration_is_enough_for_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    class Invented(SettingFields):
        offered = (
            INVENTED,
            EndpointSetting(attribute="awake", kind=bool, label="Awake", words="awake"),
        )

    form = Invented({"awake": "on", "seats": ""})
    assert form.is_valid()
    body = Body({one.field: one.attribute for one in form.offered})
    monkeypatch.setitem(BODIES, "invented", body)
    assert body_of(form, "invented") == {"awake": True}
    assert not Invented({"seats": "many"}).is_valid()


def test_a_setting_that_the_server_lacks(dave: Person, misbehaving: Misbehaving) -> None:
    """The setting is neither shown nor offered."""
    returned = {"id": "e", "branch_id": "b", "host": "e.example", "autoscaling_limit_max_cu": 2}
    answer = {"endpoint": returned, "project": {"id": "p"}, "branches": [], "operations": []}
    misbehaving.body = json.dumps({**answer, "events": []}).encode()
    page = Page(dave.get("/projects/p/endpoints/e"))
    assert "Compute size" in page.text
    assert "Suspend after" not in page.text
    assert "max_cu" in Page(dave.get("/projects/p/endpoints/e/settings")).fields
    assert "suspend_timeout" not in Page(dave.get("/projects/p/endpoints/e/settings")).fields


@pytest.mark.parametrize(
    ("present", "chosen", "minutes"),
    [
        ("900", "900", ""),
        ("0", "0", ""),
        ("-1", "-1", ""),
        ("", "", ""),
        # As it was set by the API.
        ("90", "90", ""),
        ("4620", "own", "77"),
        ("much minutes", "own", "much"),
    ],
)
def test_when_to_suspend_is_a_choice_with_minutes_of_ones_own(
    present: str, chosen: str, minutes: str
) -> None:
    html = SuspendSelect().render("suspend_timeout", present)
    assert re.findall(r'value="([^"]*)" selected', html) == [chosen]
    assert re.findall(r'_minutes" value="([^"]*)"', html) == [minutes]
    sent = {"suspend_timeout": chosen, "suspend_timeout_minutes": minutes}
    assert SuspendSelect().value_from_datadict(sent, {}, "suspend_timeout") == present


def test_sizes_are_steps_with_their_memory() -> None:
    html = SizeSelect().render("max_cu", "3.5")
    assert ">0.25 CU · 1 GB<" in html
    assert ">8 CU · 32 GB<" in html
    assert '<option value="3.5" selected>3.5 CU<' in html
