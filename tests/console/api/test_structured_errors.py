"""What the console reads from the API's structured errors, and from messages if there are none."""

from typing import Any

import pytest
from django import forms

from console.api.answers import MAX_FIELD_ERRORS, _field_errors, field_errors
from console.api.errors import Conflict, FieldError, Unprocessable
from console.api.resources.operations import Event, OfOperation
from console.events.rows import event_row
from console.pages.problems import problems_beside


class Form(forms.Form):
    name = forms.CharField(label="Name")
    pg_settings = forms.CharField(label="Postgres settings")
    min_cu = forms.CharField(label="Smallest size")


def shown(*fields: FieldError, message: str = "no", otherwise: str = "") -> dict[str, list[str]]:
    form = Form({"name": "x", "pg_settings": "y", "min_cu": "1"})
    with problems_beside(form, otherwise):
        raise Unprocessable(message, fields=fields)
    return {name: list(words) for name, words in form.errors.items()}


def test_each_field_at_fault_gets_its_own_message() -> None:
    assert shown(
        FieldError("branch.name", 'there is a branch called "dev" already'),
        FieldError("endpoints.0.settings.pg_settings.auto_explain.log_nested", "must be on or off"),
    ) == {
        "name": ["There is a branch called “dev” already."],
        "pg_settings": ["auto_explain.log_nested: must be on or off."],
    }


def test_the_same_message_about_two_fields_is_shown_once() -> None:
    words = "the first is more than the second"
    assert shown(FieldError("a.name", words), FieldError("a.pg_settings", words)) == {
        "name": ["The first is more than the second."]
    }


def test_fields_that_the_form_lacks_leave_the_message() -> None:
    assert shown(FieldError("endpoint.region_id", "other region"), message="no such region") == {
        "__all__": ["No such region."]
    }
    assert shown(message="projects limit exceeded", otherwise="name") == {
        "name": ["Projects limit exceeded."]
    }


def test_the_structure_counts_however_the_message_is_worded() -> None:
    body: dict[str, Any] = {
        "message": "settings.pg_settings.work_mem: much",
        "errors": [{"field": "endpoint.name", "code": "INVALID", "message": "too short"}],
    }
    assert _field_errors(body, body["message"]) == [FieldError("endpoint.name", "too short")]
    assert _field_errors({**body, "errors": []}, body["message"]) == []


@pytest.mark.parametrize("errors", [None, "x", {}])
def test_without_structured_errors_the_message_is_parsed(errors: object) -> None:
    message = "settings.pg_settings.work_mem: must be less"
    expected = [FieldError("settings.pg_settings.work_mem", "must be less")]
    assert _field_errors({"errors": errors}, message) == expected


def test_invalid_structured_errors_are_left_out() -> None:
    found = _field_errors({"errors": [7, None, *[{"field": 3}] * 1000]}, "")
    assert len(found) == MAX_FIELD_ERRORS - 2
    assert set(found) == {FieldError("", "")}


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            "invalid request: decode application/json: invalid: "
            "endpoint.branch_id (field required); endpoint.name (too long)",
            [("endpoint.branch_id", "field required"), ("endpoint.name", "too long")],
        ),
        (
            'role already exists; role_name:"bob"',
            [("name", 'there is a role called "bob" already')],
        ),
        ("expires_at must be later", [("expires_at", "expires_at must be later")]),
        ("no", []),
    ],
)
def test_messages_of_other_servers(message: str, fields: list[tuple[str, str]]) -> None:
    assert field_errors(message) == [FieldError(*one) for one in fields]


def test_an_event_about_an_operation() -> None:
    about = {"id": "o", "action": "start_compute", "error": "no: disk"}
    event = Event.read({"id": "1", "type": "operation.failed", "operation": about, "summary": "?"})
    assert event.operation == OfOperation("start_compute", "no: disk")
    row = event_row(event, None, {})
    assert (row.sentence, row.reason) == ("The operation “Start endpoint” has failed", "no: disk")


def test_a_conflict_is_shown_like_every_refusal_of_a_field() -> None:
    form = Form({})
    with problems_beside(form):
        raise Conflict("taken", fields=[FieldError("name", "taken already")])
    assert "Taken already." in form.errors["name"]
