"""Shows the API request that a form sends, for curl and, if it has such a command, for neonctl.

The key is never part of it. `static/same.js` updates both while the form is filled in.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django import forms

from console.api.fields import stamp
from console.api.transport import STEPS
from console.forms.api_requests import PLACE, SENT, Sent
from console.forms.fields import LifetimeFields, split_lines
from console.request import ConsoleRequest
from console.sign_in import sessions

KEY = "$NEON_API_KEY"
NEXT_LINE = " \\\n  "
# Shown instead of the command, if the form asks for more than neonctl can.
UNSAID = "# neonctl has no option for all of this; curl has."


@dataclass(frozen=True)
class SameRequest:
    curl: str
    # "" if neonctl has no such command.
    neonctl: str
    # JSON for the script that updates both while the form is filled in.
    template: str


def same_request(
    request: ConsoleRequest, form: forms.Form, also: Mapping[str, Any]
) -> SameRequest | None:
    """Return the form's request; None if the form is not exactly one request.

    `also` is what only the view knows of the body. If any of it is "", it is not known, and the
    result is None.
    """
    match, sign_in = request.resolver_match, sessions.present(request)
    sent = SENT.get(match.url_name or "") if match else None
    if sent is None or match is None or sign_in is None or "" in also.values():
        return None
    url = sign_in.shown_server.url
    # The name of a role or database is in the query of the form's address.
    kwargs = {name: str(value) for name, value in match.kwargs.items()}
    named = {"name": request.GET.get("name", ""), **kwargs}
    if "{name}" in sent.path and named["name"] in STEPS:
        return None
    path = sent.path.format(**{name: quote(value, safe="") for name, value in named.items()})
    head = f"curl -X {sent.method} {shlex.quote(url + path)} \\\n"
    head += f'  -H "Authorization: Bearer {KEY}"'
    command = ""
    if sent.neonctl:
        arguments = {name: shlex.quote(value) for name, value in named.items()}
        command = f"neonctl {sent.neonctl} --api-host {shlex.quote(url)}"
        # Each option is on a line of its own: narrow windows break words at their hyphens.
        command = command.replace(" --", f"{NEXT_LINE}--").format(**arguments)
    asked = {*sent.fields, *sent.options, *sent.ticked, *sent.flags}
    values = {name: _value(form, name, sent) for name in asked}
    always = {**sent.always, **also}
    template = {
        "curl": head,
        "method": sent.method,
        "whole": sent.is_whole,
        "neonctl": command,
        "fields": sent.fields,
        "always": always,
        "ticked": sent.ticked,
        "options": sent.options,
        "flags": sent.flags,
        "beyond": sent.beyond_neonctl,
        "unsaid": UNSAID,
    }
    return SameRequest(
        curl=head + _data(sent, values, always),
        neonctl=_command(sent, values, command) if command else "",
        template=json.dumps(template),
    )


def _value(form: forms.Form, name: str, sent: Sent) -> Any:
    """Return the present value of a field for JSON; None if it is empty or is not sent."""
    if name == "lifetime" and isinstance(form, LifetimeFields):
        end = form.filled_in_end()
        return stamp(end) if end else None
    if name not in form.fields:
        return None
    value, kind = form[name].value(), form.fields[name]
    changes = sent.method == "PATCH"
    if isinstance(kind, forms.ChoiceField) and not (form.is_bound or value):
        # Browsers choose the first option.
        offered: Any = kind.choices
        value = next((key for key, _ in offered), "")
    elif changes and not (sent.is_whole or (form.is_bound and name in form.changed_data)):
        return None
    if name == "pg_settings":
        return {key: setting for key, _, setting in split_lines(str(value))}
    if isinstance(kind, forms.BooleanField):
        return bool(value) if value or changes else None
    if value in (None, ""):
        return None
    if isinstance(kind, forms.IntegerField | forms.FloatField):
        try:
            return float(value) if "." in str(value) else int(value)
        except (TypeError, ValueError):
            return None
    return str(value)


def _data(sent: Sent, values: Mapping[str, Any], always: Mapping[str, Any]) -> str:
    body: dict[str, Any] = json.loads(json.dumps(always))
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
    if not body:
        return ""
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f" \\\n  -H 'Content-Type: application/json' \\\n  -d {text}"


def _command(sent: Sent, values: Mapping[str, Any], command: str) -> str:
    if any(values[name] for name in sent.beyond_neonctl):
        return UNSAID

    def filled(found: re.Match[str]) -> str:
        if found[1] not in sent.fields:
            return found[0]
        value = values[found[1]]
        return shlex.quote(str(value)) if value else found[1].upper()

    given = ((option, values[name]) for name, option in sent.options.items())
    options = [f"{option} {shlex.quote(str(value))}" for option, value in given if value]
    options += [flag for name, flags in sent.flags.items() if (flag := flags[not values[name]])]
    return NEXT_LINE.join([PLACE.sub(filled, command), *options])
