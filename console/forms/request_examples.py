"""Shows the API request that a form sends: as a curl command and, if there is one, as a command of
neonctl.

Neither contains the API key. `static/commands/command_line.js` updates both while the form is
filled in.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django import forms

from console.api.transport import UNSENDABLE
from console.forms.api_requests import field_values, fill_body
from console.forms.request_table import PLACE, SENT, Sent
from console.request import ConsoleRequest
from console.sign_in import sessions

KEY = "$NEON_API_KEY"
NEXT_LINE = " \\\n  "
# Shown instead of the neonctl command if neonctl has no option for some of the form's values.
BEYOND_NEONCTL = "# neonctl cannot do all of this; use curl."


@dataclass(frozen=True)
class RequestExample:
    curl: str
    # "" if neonctl has no such command.
    neonctl: str
    # JSON for the script that updates both while the form is filled in.
    template: str


def request_example(
    request: ConsoleRequest, form: forms.Form, also: Mapping[str, Any]
) -> RequestExample | None:
    """Return the request that the form sends; None unless it sends exactly one.

    `also` has the fields of the body that only the view knows. The value "" means that the view
    does not know it either; then the result is None.
    """
    match, sign_in = request.resolver_match, sessions.present(request)
    sent = SENT.get(match.url_name or "") if match else None
    if sent is None or match is None or sign_in is None or "" in also.values():
        return None
    url = sign_in.shown_server.url
    # The name of a role or database is in the query of the form's address.
    kwargs = {name: str(value) for name, value in match.kwargs.items()}
    named = {"name": request.GET.get("name", ""), **kwargs}
    if "{name}" in sent.path and named["name"] in UNSENDABLE:
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
    values = field_values(form, sent)
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
        "unsaid": BEYOND_NEONCTL,
    }
    return RequestExample(
        curl=head + _data(fill_body(sent, values, always)),
        neonctl=_command(sent, values, command) if command else "",
        template=json.dumps(template),
    )


def _data(body: Mapping[str, Any]) -> str:
    if not body:
        return ""
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f" \\\n  -H 'Content-Type: application/json' \\\n  -d {text}"


def _command(sent: Sent, values: Mapping[str, Any], command: str) -> str:
    if any(values[name] for name in sent.beyond_neonctl):
        return BEYOND_NEONCTL

    def filled(found: re.Match[str]) -> str:
        if found[1] not in sent.fields:
            return found[0]
        value = values[found[1]]
        return shlex.quote(str(value)) if value else found[1].upper()

    given = ((option, values[name]) for name, option in sent.options.items())
    options = [f"{option} {shlex.quote(str(value))}" for option, value in given if value]
    options += [flag for name, flags in sent.flags.items() if (flag := flags[not values[name]])]
    return NEXT_LINE.join([PLACE.sub(filled, command), *options])
