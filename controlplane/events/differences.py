"""What a change has changed, as an event tells it: {"from": …, "to": …} by field."""

import json
from collections.abc import Mapping
from typing import Any

# A field of an object within an object is named with dots, down to here: settings.pg_settings.x.
DEEPEST = 3
# Characters of a value, as JSON, and fields: an event is a line in a list, no second copy.
LONGEST_VALUE, MOST_FIELDS = 500, 50

Changes = dict[str, dict[str, Any]]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """The fields whose values differ; what one of the two has not is null there."""
    found = _differences(before, after, depth=1)
    kept = dict(list(found.items())[:MOST_FIELDS])
    if more := len(found) - len(kept):
        kept["…"] = {"from": None, "to": f"and {more} fields more"}
    return kept


def made_with(**fields: Any) -> Changes:
    """The fields of something new, of which those that are None say nothing."""
    return differences({}, fields)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], *, depth: int) -> Changes:
    found: Changes = {}
    for name in dict.fromkeys([*before, *after]):
        was, is_now = before.get(name), after.get(name)
        if was == is_now:
            continue
        if depth < DEEPEST and _is_object(was) and _is_object(is_now):
            inner = _differences(was or {}, is_now or {}, depth=depth + 1)
            found.update((f"{name}.{field}", values) for field, values in inner.items())
        else:
            found[name] = {"from": _cut(was), "to": _cut(is_now)}
    return found


def _is_object(value: Any) -> bool:
    """Nothing at all is as good as an empty one; false and 0 are values."""
    return value is None or isinstance(value, dict)


def _cut(value: Any) -> Any:
    """The value; one that is too long as the beginning of its text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
