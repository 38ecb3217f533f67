"""Parses the messages of servers of this API that have no fields for what the messages say.

Perch has such fields: `errors` of a refusal, `not_run_because` of an operation and `operation` of
an event. The modules that read these fields use this module if a response does not have them.
"""

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
# The error of an operation that did not run because an earlier operation of its chain failed.
NOT_RUN = re.compile(r"not run: the operation (?P<id>[\w-]+)")
# “The operation start_compute has failed: no disk”.
OF_OPERATION = re.compile(r"The operation (?P<action>\w+) [^:]*(?:: (?P<error>.*))?", re.DOTALL)


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


def not_run_because(error: str) -> str:
    """Return the id of the earlier operation that the error gives as the reason why its own
    operation did not run; "" if it gives another reason."""
    found = NOT_RUN.match(error)
    return found["id"] if found else ""


def operation_in(summary: str) -> tuple[str, str]:
    """Return the action and the error of the operation that an event's summary describes; "" for
    each that the summary does not contain."""
    found = OF_OPERATION.fullmatch(summary)
    return (found["action"], found["error"] or "") if found else ("", "")
