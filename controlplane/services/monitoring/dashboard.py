"""What a client asks for again and again while it shows a project or an account: its mark, which
tells whether to read the rest again, and the numbers of endpoints and unfinished operations."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, cast

from django.db import connection

from controlplane.database.base import DatabaseWrapper
from controlplane.models import UNFINISHED, Account, EndpointState
from controlplane.services.errors import NotFound

# Events are committed in another order than that of their times and ids, so the newest one alone
# would hide one that is committed after it. This many transactions at once are never in progress.
NEWEST_EVENTS = 64
EVENTS = """
    ARRAY(SELECT e.id FROM controlplane_event e
        WHERE e.{owner} = %(owner)s ORDER BY e.at DESC, e.id DESC LIMIT %(newest)s)
"""
OF_ACCOUNT = f"SELECT {EVENTS.format(owner='account_id')}"
# What an operation does before its end causes no event. `xmin` is the transaction that has written
# the row last, so it tells of every write. The statuses are written out, as in the index's
# condition.
OF_PROJECT = f"""
SELECT {EVENTS.format(owner="project_id")},
    ARRAY(SELECT o.id || ' ' || o.xmin FROM controlplane_operation o
        WHERE o.project_id = p.id AND o.status IN ('{"', '".join(UNFINISHED)}')
        ORDER BY o.created_at)
FROM controlplane_project p
WHERE p.id = %(owner)s AND p.account_id = %(account)s AND p.deleted_at IS NULL
"""  # noqa: S608 # constants


def mark_of_account(account: Account) -> str:
    """A text that changes with every event of the account."""
    return _digest(_read(OF_ACCOUNT, owner=account.id))


def mark_of_project(account: Account, project_id: str) -> str:
    """A text that changes with every event of the project, and with the progress of its operations.
    Raises NotFound."""
    rows = _read(OF_PROJECT, owner=project_id, account=account.id)
    if not rows:
        raise NotFound("project not found", fields=["project_id"])
    return _digest(rows)


def _read(sql: str, **values: Any) -> Sequence[Any]:
    return cast(DatabaseWrapper, connection).read(sql, {"newest": NEWEST_EVENTS, **values})


def _digest(rows: Sequence[Any]) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


ENDPOINTS = """
SELECT e.project_id, e.current_state, e.disabled, count(*)
FROM controlplane_endpoint e
JOIN controlplane_project project ON project.id = e.project_id
JOIN controlplane_branch branch ON branch.id = e.branch_id
WHERE project.account_id = %(account)s AND project.deleted_at IS NULL
    AND e.deleted_at IS NULL AND NOT branch.hidden
GROUP BY e.project_id, e.current_state, e.disabled
"""
# The statuses are written out one by one, as in the index's condition.
OPERATIONS = f"""
SELECT o.project_id, count(*)
FROM controlplane_operation o
JOIN controlplane_project project ON project.id = o.project_id
WHERE project.account_id = %(account)s AND project.deleted_at IS NULL
    AND o.status IN ('{"', '".join(UNFINISHED)}')
GROUP BY o.project_id
"""  # noqa: S608 # constants


def list_project_states(account: Account) -> list[dict[str, Any]]:
    """The numbers of each project of the account that has an endpoint or an unfinished operation,
    sorted by project id. This takes two statements, however many projects there are. Endpoints of
    hidden branches, such as those that read a past moment, are in no list and do not count."""
    read = cast(DatabaseWrapper, connection).read
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for project_id, state, disabled, count in read(ENDPOINTS, {"account": account.id}):
        is_active = state == EndpointState.ACTIVE
        counts[project_id]["disabled" if disabled else "active" if is_active else "idle"] += count
    unfinished = dict(read(OPERATIONS, {"account": account.id}))
    return [
        {
            "project_id": one,
            "endpoints": {kind: counts[one][kind] for kind in ("active", "idle", "disabled")},
            "unfinished_operations": unfinished.get(one, 0),
        }
        for one in sorted(counts.keys() | unfinished.keys())
    ]
