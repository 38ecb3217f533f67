"""A plan of EXPLAIN (FORMAT JSON) as a tree: what each step does, and its share of the whole.

The plan comes from a server that is not trusted, so missing and wrong values must do no harm."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The most levels of a tree. A deeper plan is shown as text.
MAX_DEPTH = 60
# A step is marked if it returned this many times more or fewer rows than expected.
MISESTIMATE_FACTOR = 10
# The properties that the heading and the figures of a step show already.
IN_HEADING = frozenset(
    {
        *("Node Type", "Plans", "Startup Cost", "Total Cost", "Plan Rows", "Plan Width"),
        *("Actual Startup Time", "Actual Total Time", "Actual Rows", "Actual Loops"),
        *("Relation Name", "Schema", "Alias", "Index Name", "CTE Name", "Function Name"),
        *("Parent Relationship", "Join Type", "Parallel Aware", "Async Capable", "Inner Unique"),
    }
)


@dataclass(frozen=True)
class Step:
    name: str
    # What it reads; "" if it reads other steps only.
    on: str
    # Percent of the whole plan's time if it has run, else of its cost. The steps below it do not
    # count.
    share: int
    figures: str
    # True if it returned far more or fewer rows than expected.
    is_far_off: bool
    # Conditions, keys and the like.
    details: Sequence[tuple[str, str]]
    steps: Sequence["Step"]


@dataclass(frozen=True)
class Plan:
    root: Step
    # What shares are of: "time" if the statement has run, else "cost".
    measure: str
    # How long planning and execution took; "" if the statement has not run.
    times: str


def read_plan(text: str) -> Plan | None:
    """Read a plan; None if it is none, or too deep."""
    try:
        whole = json.loads(text)[0]
        plan = whole["Plan"]
        has_run = "Actual Total Time" in plan
        root = _step(plan, max(_total(plan, has_run=has_run), 1e-9), has_run=has_run)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    spent = [
        f"{words} {_number(whole[name]):.2f} ms"
        for name, words in (("Planning Time", "planned in"), ("Execution Time", "executed in"))
        if name in whole
    ]
    return Plan(root, "time" if has_run else "cost", ", ".join(spent) if has_run else "")


def _step(
    node: Mapping[str, Any],
    whole: float,
    *,
    has_run: bool,
    level: int = 1,
    is_limited: bool = False,
) -> Step:
    if level > MAX_DEPTH:
        raise ValueError("too deep")
    below = [one for one in node.get("Plans", []) if isinstance(one, Mapping)]
    own = _total(node, has_run=has_run) - sum(_total(one, has_run=has_run) for one in below)
    expected, loops = _number(node.get("Plan Rows")), _number(node.get("Actual Loops"))
    returned = _number(node.get("Actual Rows"))
    figures = [f"cost {_number(node.get('Total Cost')):,.2f}", f"{_rows(expected)} expected"]
    if has_run and loops:
        figures = [f"{_total(node, has_run=True):,.2f} ms", _rows(returned), *figures[1:]]
        figures += [f"{loops:,.0f} times"] if loops > 1 else []
    if has_run and not loops:
        figures = ["never executed"]
    ratio = max(returned, 1) / max(expected, 1)
    # A step below a limit is stopped early, so that it may return fewer rows.
    is_far_off = ratio >= MISESTIMATE_FACTOR or (ratio <= 1 / MISESTIMATE_FACTOR and not is_limited)
    is_limited = is_limited or node.get("Node Type") == "Limit"
    return Step(
        name=_name(node),
        on=_on(node),
        share=min(100, max(0, round(100 * own / whole))),
        figures=", ".join(figures),
        is_far_off=bool(has_run and loops) and is_far_off,
        details=_details(node),
        steps=[
            _step(one, whole, has_run=has_run, level=level + 1, is_limited=is_limited)
            for one in below
        ],
    )


def _rows(count: float) -> str:
    return f"{count:,.0f} row{'' if round(count) == 1 else 's'}"


def _total(node: Mapping[str, Any], *, has_run: bool) -> float:
    """Return the time (ms) or the cost of a step with those below it."""
    if not has_run:
        return _number(node.get("Total Cost"))
    # Times are those of one loop.
    return _number(node.get("Actual Total Time")) * _number(node.get("Actual Loops"))


def _name(node: Mapping[str, Any]) -> str:
    name = str(node["Node Type"])
    join = str(node.get("Join Type", "Inner"))
    return name if join == "Inner" else f"{name} ({join})"


def _on(node: Mapping[str, Any]) -> str:
    names = ("Relation Name", "CTE Name", "Function Name")
    on = next((str(node[name]) for name in names if name in node), "")
    alias = str(node.get("Alias", on))
    on = on if alias == on or not on else f"{on} as {alias}"
    index = str(node.get("Index Name", ""))
    return f"{on or 'index'} by {index}" if index else on


def _details(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in node.items():
        if name in IN_HEADING or value in (0, False, None, "") or isinstance(value, Mapping):
            continue
        words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        found.append((name, words))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
