"""The API requests of the console's forms, by the names of the forms' URLs.

Views send the body that this table makes of a form. `request_examples` shows the same request for
curl and neonctl, and `static/commands/command_line.js` keeps it up to date while the form is
filled in.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django import forms

from console.api.fields import stamp
from console.forms.endpoint_settings import ENDPOINT_SETTINGS
from console.forms.fields import LifetimeFields, split_lines

PLACE = re.compile(r"\[(\w+)\]")
PROJECT = "/projects/{project_id}"
BRANCH = PROJECT + "/branches/{branch_id}"
ROLE = BRANCH + "/roles/{name}"
DATABASE = BRANCH + "/databases/{name}"
SNAPSHOT = PROJECT + "/snapshots/{snapshot_id}"
ENDPOINT = PROJECT + "/endpoints/{endpoint_id}"


@dataclass(frozen=True)
class Sent:
    """One request. Names in braces are taken from the form's address."""

    method: str
    path: str
    # Where the value of each of the form's fields goes in the body.
    fields: Mapping[str, str] = field(default_factory=dict)
    # The parts of the body that do not depend on the form.
    always: Mapping[str, Any] = field(default_factory=dict)
    # By field: what else the body has if that field is not empty, as its place and its value.
    ticked: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # neonctl's command for the same request, "" if it has none; names in brackets are fields. Its
    # options by field, each with the field's value. Its flags by field: the flag if the field is
    # not empty, and the flag if it is.
    neonctl: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # True if the form sends unchanged values too, with PATCH.
    is_whole: bool = False

    @property
    def beyond_neonctl(self) -> list[str]:
        """The fields that neonctl's command cannot express."""
        expressed = {*self.options, *self.flags, *PLACE.findall(self.neonctl)}
        return [name for name in (*self.fields, *self.ticked) if name not in expressed]


SETTINGS = {one.field: f"endpoint.{one.attribute}" for one in ENDPOINT_SETTINGS}
OF_PROJECT = "--project-id {project_id}"
OF_BRANCH = f"{OF_PROJECT} --branch {{branch_id}}"
KEPT = {"preserve_under_name": "--preserve-under-name"}
SENT: Mapping[str, Sent] = {
    "project_create": Sent(
        "POST",
        "/projects",
        {
            "name": "project.name",
            "region_id": "project.region_id",
            "pg_version": "project.pg_version",
        },
        {"project": {}},
        neonctl="projects create",
        options={"name": "--name", "region_id": "--region-id"},
    ),
    "project_rename": Sent(
        "PATCH",
        PROJECT,
        {"name": "project.name"},
        neonctl="projects update {project_id}",
        options={"name": "--name"},
        is_whole=True,
    ),
    "project_history": Sent(
        "PATCH", PROJECT, {"retention": "project.history_retention_seconds"}, is_whole=True
    ),
    "project_delete": Sent("DELETE", PROJECT, neonctl="projects delete {project_id}"),
    "branch_create": Sent(
        "POST",
        f"{PROJECT}/branches",
        {
            "name": "branch.name",
            "parent_id": "branch.parent_id",
            "lifetime": "branch.expires_at",
            "protected": "branch.protected",
        },
        ticked={
            "with_endpoint": ("endpoints", [{"type": "read_write"}]),
            "schema_only": ("branch.init_source", "schema-only"),
        },
        neonctl=f"branches create {OF_PROJECT}",
        options={"name": "--name", "parent_id": "--parent", "lifetime": "--expires-at"},
        flags={
            "with_endpoint": ("", "--no-compute"),
            "schema_only": ("--schema-only", ""),
            "protected": ("--protected", ""),
        },
    ),
    "branch_rename": Sent(
        "PATCH",
        BRANCH,
        {"name": "branch.name"},
        neonctl=f"branches rename {{branch_id}} [name] {OF_PROJECT}",
        is_whole=True,
    ),
    "branch_expiry": Sent(
        "PATCH",
        BRANCH,
        {"lifetime": "branch.expires_at"},
        {"branch": {"expires_at": None}},
        neonctl=f"branches set-expiration {{branch_id}} {OF_PROJECT}",
        options={"lifetime": "--expires-at"},
    ),
    "branch_reset": Sent(
        "POST",
        f"{BRANCH}/restore",
        {"preserve_under_name": "preserve_under_name"},
        neonctl=f"branches reset {{branch_id}} --parent {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_restore": Sent(
        "POST",
        f"{BRANCH}/restore",
        {"source_id": "source_branch_id", "preserve_under_name": "preserve_under_name"},
        neonctl=f"branches restore {{branch_id}} [source_id] {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_history_create": Sent(
        "POST",
        f"{PROJECT}/branches",
        {
            "timestamp": "branch.parent_timestamp",
            "lsn": "branch.parent_lsn",
            "name": "branch.name",
            "lifetime": "branch.expires_at",
        },
        {"endpoints": [{"type": "read_write"}]},
    ),
    "branch_history_restore": Sent(
        "POST",
        f"{BRANCH}/restore",
        {
            "timestamp": "source_timestamp",
            "lsn": "source_lsn",
            "preserve_under_name": "preserve_under_name",
        },
        neonctl=f"branches restore {{branch_id}} ^self@[timestamp] {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_delete": Sent("DELETE", BRANCH, neonctl=f"branches delete {{branch_id}} {OF_PROJECT}"),
    "role_create": Sent(
        "POST",
        f"{BRANCH}/roles",
        {"name": "role.name"},
        neonctl=f"roles create {OF_BRANCH}",
        options={"name": "--name"},
    ),
    "role_password": Sent("GET", f"{ROLE}/reveal_password"),
    "role_reset": Sent("POST", f"{ROLE}/reset_password"),
    "role_delete": Sent("DELETE", ROLE, neonctl=f"roles delete {{name}} {OF_BRANCH}"),
    "database_create": Sent(
        "POST",
        f"{BRANCH}/databases",
        {"name": "database.name", "owner_name": "database.owner_name"},
        neonctl=f"databases create {OF_BRANCH}",
        options={"name": "--name", "owner_name": "--owner-name"},
    ),
    "database_edit": Sent(
        "PATCH",
        DATABASE,
        {"name": "database.name", "owner_name": "database.owner_name"},
        is_whole=True,
    ),
    "database_delete": Sent("DELETE", DATABASE, neonctl=f"databases delete {{name}} {OF_BRANCH}"),
    "snapshot_create": Sent(
        "POST",
        f"{BRANCH}/snapshot",
        {"name": "name", "lifetime": "expires_at"},
        neonctl=f"snapshots create {OF_BRANCH}",
        options={"name": "--name", "lifetime": "--expires-at"},
    ),
    "snapshot_edit": Sent(
        "PATCH",
        SNAPSHOT,
        {"name": "snapshot.name", "lifetime": "snapshot.expires_at"},
        {"snapshot": {"expires_at": None}},
        neonctl=f"snapshots update {{snapshot_id}} {OF_PROJECT}",
        options={"name": "--name", "lifetime": "--expires-at"},
        flags={"lifetime": ("", "--clear-expiration")},
    ),
    "snapshot_restore": Sent(
        "POST",
        f"{SNAPSHOT}/restore",
        {"target_id": "target_branch_id", "name": "name"},
        ticked={"target_id": ("finalize_restore", True)},
        neonctl=f"snapshots restore {{snapshot_id}} {OF_PROJECT}",
        options={"target_id": "--target-branch", "name": "--name"},
        flags={"target_id": ("--finalize", "")},
    ),
    "snapshot_delete": Sent(
        "DELETE", SNAPSHOT, neonctl=f"snapshots delete {{snapshot_id}} {OF_PROJECT}"
    ),
    "endpoint_create": Sent(
        "POST",
        f"{PROJECT}/endpoints",
        {"branch_id": "endpoint.branch_id", **SETTINGS},
        {"endpoint": {"type": "read_write"}},
        neonctl=f"branches add-compute [branch_id] {OF_PROJECT} --type read_write",
    ),
    "endpoint_suspend": Sent("POST", f"{ENDPOINT}/suspend"),
    "endpoint_restart": Sent("POST", f"{ENDPOINT}/restart"),
    "endpoint_disable": Sent("PATCH", ENDPOINT, always={"endpoint": {"disabled": True}}),
    "endpoint_reassign": Sent("PATCH", ENDPOINT, {"branch_id": "endpoint.branch_id"}),
    "endpoint_settings": Sent(
        "PATCH", ENDPOINT, {**SETTINGS, "pg_settings": "endpoint.settings.pg_settings"}
    ),
    "endpoint_delete": Sent("DELETE", ENDPOINT),
    "api_key_create": Sent(
        "POST",
        "/api_keys",
        {
            "name": "key_name",
            "project_id": "project_id",
            "read_only": "read_only",
            "expires_at": "expires_at",
        },
    ),
    "api_key_revoke": Sent("DELETE", "/api_keys/{key_id}"),
    "webhook_create": Sent(
        "POST",
        "/webhooks",
        {
            "url": "webhook.url",
            "description": "webhook.description",
            "project_id": "webhook.project_id",
            "event_types": "webhook.event_types",
        },
        {"webhook": {"event_types": ["*"]}},
    ),
    "webhook_rotate": Sent("POST", "/webhooks/{webhook_id}/rotate_secret"),
    "webhook_delete": Sent("DELETE", "/webhooks/{webhook_id}"),
}

# The fields whose names differ from those of the API's attributes, by the attribute.
FIELDS_OF_ATTRIBUTES = {
    "role_name": "name",
    "database_name": "name",
    **{
        place.rpartition(".")[2]: name
        for sent in SENT.values()
        for name, place in sent.fields.items()
        if place.rpartition(".")[2] != name
    },
}


def body_of(form: forms.Form, url_name: str, **known: Any) -> dict[str, Any]:
    """Return the body of the form's request. The `known` values take the place of fields'."""
    sent = SENT[url_name]
    return fill_body(sent, {**field_values(form, sent), **known}, sent.always)


def field_values(form: forms.Form, sent: Sent) -> dict[str, Any]:
    """Return the fields' present values for JSON; None for what is empty or is not sent."""
    names = {*sent.fields, *sent.options, *sent.ticked, *sent.flags}
    return {name: _value(form, name, sent) for name in names}


def fill_body(sent: Sent, values: Mapping[str, Any], always: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with each value in its place."""
    body: dict[str, Any] = deepcopy(dict(always))
    placed = [(place, values[name]) for name, place in sent.fields.items()]
    placed += [more for name, more in sent.ticked.items() if values[name]]
    for place, value in placed:
        if value is None:
            continue
        *outer, last = place.split(".")
        inner = body
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return body


def _value(form: forms.Form, name: str, sent: Sent) -> Any:
    if name == "lifetime" and isinstance(form, LifetimeFields):
        end = form.filled_in_end()
        return stamp(end) if end else None
    if name not in form.fields:
        return None
    value, kind = form[name].value(), form.fields[name]
    changes = sent.method == "PATCH"
    if _offers_one(kind) and not (form.is_bound or value):
        # Browsers choose the first option.
        offered: Any = kind.choices  # type: ignore[attr-defined]
        value = next((key for key, _ in offered), "")
    elif changes and not (sent.is_whole or (form.is_bound and name in form.changed_data)):
        return None
    if form.is_bound and not form.errors:
        value = form.cleaned_data[name]
    if name == "pg_settings":
        if isinstance(value, dict):
            return value
        return {key: setting for key, _, setting in split_lines(str(value))}
    if isinstance(kind, forms.BooleanField):
        return bool(value) if value or changes else None
    if value in (None, "", []):
        return None
    return _for_json(kind, value)


def _offers_one(kind: forms.Field) -> bool:
    return isinstance(kind, forms.ChoiceField) and not isinstance(kind, forms.MultipleChoiceField)


def _for_json(kind: forms.Field, value: Any) -> Any:
    """Return a value that is not empty, typed or validated; None if it is invalid."""
    try:
        if isinstance(kind, forms.DateField):
            return _end_of_day(kind.to_python(value))
        if isinstance(kind, forms.IntegerField | forms.FloatField):
            number = float(value)
            return int(number) if number.is_integer() else number
    except (forms.ValidationError, TypeError, ValueError, OverflowError):
        return None
    return value if isinstance(value, list) else str(value)


def _end_of_day(day: date | None) -> str | None:
    return stamp(datetime.combine(day + timedelta(days=1), time(), UTC)) if day else None
