"""The changed fields of a resource, in the form that an event has them: {"from": …, "to": …} by
field."""

import json
from collections.abc import Mapping
from typing import Any

# Fields of nested objects are named with dots, such as settings.pg_settings.x, down to this level.
MAX_DEPTH = 3
# Characters of a value as JSON, and the number of fields. An event is a line in a list, not a copy
# of the resource.
MAX_VALUE_LENGTH, MAX_FIELDS = 500, 50

Changes = dict[str, dict[str, Any]]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """The fields whose values differ. A field that is missing on one side is null there. Beyond
    MAX_FIELDS, the field "…" says how many more there are."""
    found = _differences(before, after, depth=1)
    # A quota of 0 is none.
    for name in [name for name in found if name.startswith("settings.quota.")]:
        if not found[name]["from"] and not found[name]["to"]:
            del found[name]
    kept = dict(list(found.items())[:MAX_FIELDS])
    if more := len(found) - len(kept):
        kept["…"] = {"from": None, "to": f"and {more} more fields"}
    return kept


def made_with(**fields: Any) -> Changes:
    """The fields of a new resource. Fields that are None are left out."""
    return differences({}, fields)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], *, depth: int) -> Changes:
    found: Changes = {}
    for name in dict.fromkeys([*before, *after]):
        was, is_now = before.get(name), after.get(name)
        if was == is_now:
            continue
        if depth < MAX_DEPTH and _is_object(was) and _is_object(is_now):
            inner = _differences(was or {}, is_now or {}, depth=depth + 1)
            found.update((f"{name}.{field}", values) for field, values in inner.items())
        else:
            found[name] = {"from": _cut(was), "to": _cut(is_now)}
    return found


def _is_object(value: Any) -> bool:
    """True for a dict and for None, which counts as an empty object; false and 0 are values."""
    return value is None or isinstance(value, dict)


def _cut(value: Any) -> Any:
    """The value, or the beginning of its text if it is too long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"
