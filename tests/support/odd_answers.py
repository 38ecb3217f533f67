"""Changes answers of this API into those of other servers, or of a faulty one."""

import random
import re
from collections.abc import Callable
from typing import Any

# Without these fields, nothing has a name or a link.
NEEDED = re.compile(
    r"^(id|name|.*_id|project|projects|endpoint|endpoints|branch|branches|operation"
    r"|operations|events|history|roles|databases|snapshots|webhook|webhooks|deliveries|action"
    r"|type|status|ur[il]|hosts?|regions|region_id|pg_settings|user|login|current_state)$"
)
ENUMERATED = {
    "current_state",
    "pending_state",
    "status",
    "action",
    "type",
    "kind",
    "plan",
    "reason",
}


def bare(data: Any) -> Any:
    """Remove every field that a server need not have."""
    if isinstance(data, dict):
        return {name: bare(value) for name, value in data.items() if NEEDED.match(name)}
    return [bare(one) for one in data] if isinstance(data, list) else data


def strange(data: Any) -> Any:
    """Replace values, and add fields, with ones that are unknown so far."""
    if isinstance(data, dict):
        known = {
            name: "hibernating" if name in ENUMERATED and isinstance(value, str) else strange(value)
            for name, value in data.items()
        }
        return known | {"colour": {"name": ["green"]}}
    return [strange(one) for one in data] if isinstance(data, list) else data


def empty(data: Any) -> Any:
    """Replace every value that may be null by null."""
    if isinstance(data, dict):
        return {
            name: empty(value) if NEEDED.match(name) or isinstance(value, dict | list) else None
            for name, value in data.items()
        }
    return [empty(one) for one in data] if isinstance(data, list) else data


def jumbled(seed: int) -> Callable[[Any], Any]:
    """Return a function that replaces some values by ones of another type."""
    others: list[Any] = [None, True, -1, 1e300, "", "x" * 5000, "²", [], {}, [{}], {"id": []}]
    chance = random.Random(seed)

    def twist(data: Any) -> Any:
        if chance.random() < 0.04:
            return chance.choice(others)
        if isinstance(data, dict):
            return {name: twist(value) for name, value in data.items()}
        return [twist(one) for one in data] if isinstance(data, list) else data

    return twist
