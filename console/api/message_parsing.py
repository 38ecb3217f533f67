"""Parses the refusals of servers of this API that do not name the fields at fault. Perch does, in
`errors`; `answers` uses this module if a response does not have that."""

import re

from console.api.errors import FieldError

# “… invalid: endpoint.branch_id (field required); endpoint.name (…)”.
INVALID = re.compile(r"(?P<path>[\w.]+) \((?P<why>.*?)\)(?:; |$)", re.DOTALL)
# “branch already exists; branch_name:"dev"”.
TAKEN = re.compile(r'(?P<kind>\w+) already exists; \w+_name:(?P<name>"[^"]*")', re.IGNORECASE)
# “settings.pg_settings.work_mem: must be …”.
NAMED = re.compile(r"(?P<path>\w+(?:\.[\w$]+)+): (?P<why>.*)", re.DOTALL)
# The name of an attribute: words in lower case, joined by underscores.
ATTRIBUTE = re.compile(r"\b[A-Za-z]+(?:_[a-z]+)+\b")


def field_errors(message: str) -> list[FieldError]:
    """Return the errors of fields that the message of a refusal contains."""
    _, invalid, complaints = message.partition("invalid: ")
    if invalid and (found := [FieldError(*one) for one in INVALID.findall(complaints)]):
        return found
    if taken := TAKEN.search(message):
        kind, name = taken["kind"].lower(), taken["name"]
        return [FieldError("name", f"there is a {kind} called {name} already")]
    if named := NAMED.fullmatch(message):
        return [FieldError(named["path"], named["why"])]
    return [FieldError(name.lower(), message) for name in ATTRIBUTE.findall(message)]
