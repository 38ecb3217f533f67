"""The API requests that the console's forms send: the table of where the values of forms go in the
bodies, by the names of the forms' URLs; and a request as a command for curl."""

import json
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.utils.timezone import make_aware

from console.api.errors import RequestShown
from console.api.fields import stamp
from console.forms.endpoint_settings import ENDPOINT_SETTINGS
from console.forms.fields import LifetimeFields, ScaledField


@dataclass(frozen=True)
class Body:
    # Where the value of each of the form's fields goes in the body.
    fields: Mapping[str, str]
    # The parts of the body that do not depend on the form.
    always: Mapping[str, Any] = field(default_factory=dict)
    # By field: what else the body has if that field is not empty, as its place and its value.
    ticked: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # True if only changed values are sent.
    is_partial: bool = False
    # True if a box that is not ticked is sent as false.
    sends_false: bool = False


def _within(place: str, *names: str) -> dict[str, str]:
    """Return the places of fields with the API's names, within an object of the body."""
    return {name: f"{place}.{name}" for name in names}


SETTINGS = {one.field: f"endpoint.{one.attribute}" for one in ENDPOINT_SETTINGS}
# The API's names of a project's quotas.
QUOTA_NAMES = (
    "active_time_seconds",
    "compute_time_seconds",
    "written_data_bytes",
    "data_transfer_bytes",
    "logical_size_bytes",
)
BODIES: dict[str, Body] = {
    "project_create": Body(_within("project", "name", "region_id", "pg_version"), {"project": {}}),
    "project_rename": Body(_within("project", "name")),
    "project_history": Body({"retention": "project.history_retention_seconds"}),
    "project_durability": Body(_within("project.settings", "durability")),
    "project_addresses": Body(
        _within("project.settings.allowed_ips", "ips", "protected_branches_only")
        | _within("project.settings", "block_public_connections", "block_outbound_connections"),
        {"project": {"settings": {"allowed_ips": {"ips": []}}}},
        sends_false=True,
    ),
    "project_quotas": Body(_within("project.settings.quota", *QUOTA_NAMES), is_partial=True),
    "project_defaults": Body(
        {
            one.field: f"project.default_endpoint_settings.{one.attribute}"
            for one in ENDPOINT_SETTINGS
            if one.is_in_change_form
        },
        is_partial=True,
    ),
    "branch_create": Body(
        _within("branch", "name", "parent_id")
        | {"lifetime": "branch.expires_at", "protected": "branch.protected"},
        ticked={
            "with_endpoint": ("endpoints", [{"type": "read_write"}]),
            "schema_only": ("branch.init_source", "schema-only"),
        },
    ),
    "branch_rename": Body(_within("branch", "name")),
    "branch_expiry": Body({"lifetime": "branch.expires_at"}, {"branch": {"expires_at": None}}),
    "branch_reset": Body({"preserve_under_name": "preserve_under_name"}),
    "branch_restore": Body(
        {"source_id": "source_branch_id", "preserve_under_name": "preserve_under_name"}
    ),
    "branch_history_create": Body(
        {
            "timestamp": "branch.parent_timestamp",
            "lsn": "branch.parent_lsn",
            "name": "branch.name",
            "lifetime": "branch.expires_at",
        },
        {"endpoints": [{"type": "read_write"}]},
    ),
    "branch_history_restore": Body(
        {
            "timestamp": "source_timestamp",
            "lsn": "source_lsn",
            "preserve_under_name": "preserve_under_name",
        },
    ),
    "role_create": Body(_within("role", "name")),
    "database_create": Body(_within("database", "name", "owner_name")),
    "snapshot_create": Body({"name": "name", "lifetime": "expires_at"}),
    "snapshot_edit": Body(
        {"name": "snapshot.name", "lifetime": "snapshot.expires_at"},
        {"snapshot": {"expires_at": None}},
    ),
    "snapshot_restore": Body(
        {"target_id": "target_branch_id", "name": "name"},
        ticked={"target_id": ("finalize_restore", True)},
    ),
    "endpoint_create": Body(
        {**_within("endpoint", "branch_id"), **SETTINGS}, {"endpoint": {"type": "read_write"}}
    ),
    "endpoint_reassign": Body(_within("endpoint", "branch_id")),
    "endpoint_settings": Body(
        {**SETTINGS, "pg_settings": "endpoint.settings.pg_settings"}, is_partial=True
    ),
    "api_key_create": Body(
        {
            "name": "key_name",
            "project_id": "project_id",
            "read_only": "read_only",
            "expires_at": "expires_at",
        },
    ),
    "webhook_create": Body(
        _within("webhook", "url", "description", "project_id", "event_types"),
        {"webhook": {"event_types": ["*"]}},
    ),
    "webhook_edit": Body(
        _within("webhook", "url", "description", "event_types"),
        {"webhook": {"description": "", "event_types": ["*"]}},
    ),
}

# The fields whose names differ from those of the API's attributes, by the attribute.
FIELDS_OF_ATTRIBUTES = {
    "role_name": "name",
    "database_name": "name",
    **{
        place.rpartition(".")[2]: name
        for body in BODIES.values()
        for name, place in body.fields.items()
        if place.rpartition(".")[2] != name
    },
}


def body_of(form: forms.Form, url_name: str, **known: Any) -> dict[str, Any]:
    """Return the body of the valid form's request. The `known` values take the place of fields'."""
    shape = BODIES[url_name]
    names = {*shape.fields, *shape.ticked}
    values = {**{name: _value(form, name, shape) for name in names}, **known}
    body: dict[str, Any] = deepcopy(dict(shape.always))
    placed = [(place, values[name]) for name, place in shape.fields.items()]
    placed += [more for name, more in shape.ticked.items() if values[name]]
    for place, value in placed:
        if value is None:
            continue
        *outer, last = place.split(".")
        inner = body
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return body


def _value(form: forms.Form, name: str, shape: Body) -> Any:
    """Return the field's value for JSON; None for what is empty or is not sent."""
    if name == "lifetime" and isinstance(form, LifetimeFields):
        return stamp(form.expires_at) if form.expires_at else None
    if name not in form.fields or (shape.is_partial and name not in form.changed_data):
        return None
    value, kind = form.cleaned_data[name], form.fields[name]
    if isinstance(kind, forms.BooleanField):
        return value or (False if shape.is_partial or shape.sends_false else None)
    if isinstance(value, dict):
        return value
    if isinstance(kind, ScaledField):
        # A field that was emptied ends the limit.
        return round((value or 0) * kind.scale)
    if value in (None, "", []):
        return None
    if isinstance(value, date):
        # The end of the day in the reader's zone.
        return stamp(make_aware(datetime.combine(value + timedelta(days=1), time())))
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value if isinstance(value, int | list) else str(value)


KEY = "$NEON_API_KEY"


def curl(request: RequestShown, server_url: str) -> str:
    """Return the command for a POSIX shell. It does not contain the API key."""
    lines = [
        f"curl -X {request.method} {shlex.quote(server_url + request.address)}",
        f'-H "Authorization: Bearer {KEY}"',
    ]
    if request.body:
        data = json.dumps(request.body, ensure_ascii=False)
        lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(data)}"]
    return " \\\n  ".join(lines)
