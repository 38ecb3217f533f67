"""What a form does, as the request that does it: for curl and, where it has a command, neonctl.

By the name of the form's address, so that a form needs nothing of this. The key is never in it.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms

from console import sessions
from console.request import ConsoleRequest

KEY = "$NEON_API_KEY"
PLACE = re.compile(r"\[(\w+)\]")
PROJECT = "/projects/{project_id}"
BRANCH = PROJECT + "/branches/{branch_id}"
ENDPOINT = PROJECT + "/endpoints/{endpoint_id}"


@dataclass(frozen=True)
class Sent:
    """One request. Names in braces are of the form's address."""

    method: str
    path: str
    # A field of the form → where its value goes in the body.
    fields: Mapping[str, str] = field(default_factory=dict)
    # What the body has whatever is filled in, by where it goes.
    always: Mapping[str, Any] = field(default_factory=dict)
    # What the body has too where a box is ticked.
    ticked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The command of neonctl for the same, "" where it has none; in brackets what a field holds. And
    # its options by field.
    neonctl: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


SIZES = {
    "min_cu": "endpoint.autoscaling_limit_min_cu",
    "max_cu": "endpoint.autoscaling_limit_max_cu",
    "suspend_timeout": "endpoint.suspend_timeout_seconds",
    "pooler_enabled": "endpoint.pooler_enabled",
}
OF_PROJECT = "--project-id {project_id}"
SENT: Mapping[str, Sent] = {
    "project_create": Sent(
        "POST",
        "/projects",
        {"name": "project.name", "region_id": "project.region_id"},
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
    ),
    "project_delete": Sent("DELETE", PROJECT, neonctl="projects delete {project_id}"),
    "branch_create": Sent(
        "POST",
        f"{PROJECT}/branches",
        {"name": "branch.name", "parent_id": "branch.parent_id"},
        ticked={"with_endpoint": {"endpoints": [{"type": "read_write"}]}},
        neonctl=f"branches create {OF_PROJECT}",
        options={"name": "--name", "parent_id": "--parent"},
    ),
    "branch_rename": Sent(
        "PATCH",
        BRANCH,
        {"name": "branch.name"},
        neonctl=f"branches rename {{branch_id}} [name] {OF_PROJECT}",
    ),
    "branch_delete": Sent("DELETE", BRANCH, neonctl=f"branches delete {{branch_id}} {OF_PROJECT}"),
    "endpoint_create": Sent(
        "POST",
        f"{PROJECT}/endpoints",
        {"branch_id": "endpoint.branch_id", **SIZES},
        {"endpoint": {"type": "read_write"}},
        neonctl=f"branches add-compute [branch_id] {OF_PROJECT}",
    ),
    "endpoint_reassign": Sent("PATCH", ENDPOINT, {"branch_id": "endpoint.branch_id"}),
    "endpoint_settings": Sent("PATCH", ENDPOINT, SIZES),
    "endpoint_delete": Sent("DELETE", ENDPOINT),
    "api_key_create": Sent(
        "POST",
        "/api_keys",
        {"name": "key_name", "project_id": "project_id", "read_only": "read_only"},
    ),
    "api_key_revoke": Sent("DELETE", "/api_keys/{key_id}"),
    "webhook_create": Sent(
        "POST",
        "/webhooks",
        {"url": "webhook.url", "description": "webhook.description"},
        {"webhook": {"event_types": ["*"]}},
    ),
    "webhook_rotate": Sent("POST", "/webhooks/{webhook_id}/rotate_secret"),
    "webhook_delete": Sent("DELETE", "/webhooks/{webhook_id}"),
}


@dataclass(frozen=True)
class SameRequest:
    curl: str
    # "" where it has no command for it.
    neonctl: str
    # For the script that writes both anew while the form is filled in.
    template: str


def same_request(request: ConsoleRequest, form: forms.Form) -> SameRequest | None:
    """None where a form is not simply one request, or its address is not known here."""
    match, sign_in = request.resolver_match, sessions.present(request)
    sent = SENT.get(match.url_name or "") if match else None
    if sent is None or match is None or sign_in is None:
        return None
    url = sign_in.shown_server.url
    named = {name: str(value) for name, value in match.kwargs.items()}
    known = {*sent.fields, *sent.options, *sent.ticked}
    values = {name: _value(form, name, sent.method) for name in known}
    head = f"curl -X {sent.method} {shlex.quote(url + sent.path.format(**named))} \\\n"
    head += f'  -H "Authorization: Bearer {KEY}"'
    command = ""
    if sent.neonctl:
        command = f"neonctl {sent.neonctl.format(**named)} --api-host {shlex.quote(url)}"
    template = {
        "curl": head,
        "method": sent.method,
        "neonctl": command,
        "fields": {name: place.split(".") for name, place in sent.fields.items()},
        "always": sent.always,
        "ticked": sent.ticked,
        "options": sent.options,
    }
    return SameRequest(
        curl=head + _data(sent, values),
        neonctl=_command(sent, values, command) if command else "",
        template=json.dumps(template),
    )


def _value(form: forms.Form, name: str, method: str) -> Any:
    """What is filled in just now, as JSON has it; None where that is nothing, or no change."""
    changed = form.changed_data if form.is_bound else ()
    if name not in form.fields or (method == "PATCH" and name not in changed):
        return None
    value, kind = form[name].value(), form.fields[name]
    if isinstance(kind, forms.BooleanField):
        return bool(value) if value or method == "PATCH" else None
    if value in (None, ""):
        return None
    if isinstance(kind, forms.IntegerField | forms.FloatField):
        try:
            return float(value) if "." in str(value) else int(value)
        except (TypeError, ValueError):
            return None
    return str(value)


def _data(sent: Sent, values: Mapping[str, Any]) -> str:
    if sent.method == "DELETE":
        return ""
    body: dict[str, Any] = json.loads(json.dumps(sent.always))
    for name, place in sent.fields.items():
        if values[name] is None:
            continue
        *outer, last = place.split(".")
        inner = body
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = values[name]
    for name, more in sent.ticked.items():
        body |= more if values[name] else {}
    if not body:
        return ""
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f" \\\n  -H 'Content-Type: application/json' \\\n  -d {text}"


def _command(sent: Sent, values: Mapping[str, Any], command: str) -> str:
    def filled(found: re.Match[str]) -> str:
        value = values.get(found[1])
        return shlex.quote(str(value)) if value else found[1].upper()

    given = ((option, values[name]) for name, option in sent.options.items())
    options = (f" {option} {shlex.quote(str(value))}" for option, value in given if value)
    return PLACE.sub(filled, command) + "".join(options)
