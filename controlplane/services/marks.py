"""Marks: a client that shows a project or an account asks for its mark again and again, and reads
what it shows only when the mark is another one."""

import hashlib
from collections.abc import Sequence
from typing import Any, cast

from django.db import connection

from controlplane.database.base import DatabaseWrapper
from controlplane.models import UNFINISHED, Account
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
