"""The proxy's queries: who may connect to an endpoint, and whether its compute can be used.

psycopg's own asynchronous connections, not the ORM: the proxy asks from its event loop, which
the ORM would block. Each connection must be in autocommit mode; psycopg.Error goes through.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row

from controlplane import clock
from controlplane.models.plans import LIMITS

Connection = AsyncConnection[Any]

# Where triggers (migrations 0003, 0017, 0023) tell of each endpoint that changed, by its id.
CHANGES = "perch_endpoints"

ROUTE = """
SELECT e.id AS endpoint_id, p.account_id, a.plan, e.disabled, e.pooler_enabled, e.branch_id,
    e.current_state = 'active' AS is_active,
    r.id AS role_id, r.verifier, r.no_login, r.valid_until, r.compute_oid, r.password_is_newer,
    r.sessions_end_at,
    ARRAY(
        SELECT gone.compute_oid FROM controlplane_role gone
        WHERE gone.branch_id = e.branch_id AND gone.deleted_at IS NOT NULL
            AND gone.compute_oid IS NOT NULL
    ) AS doomed,
    b.protected, jsonb_build_object(
        'allowed_ips', p.settings -> 'allowed_ips',
        'block_public_connections', p.settings -> 'block_public_connections')::text AS access
FROM controlplane_endpoint e
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_branch b ON b.id = e.branch_id
JOIN controlplane_account a ON a.id = p.account_id
LEFT JOIN controlplane_role r
    ON r.branch_id = e.branch_id AND r.name = %(role)s AND r.deleted_at IS NULL
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL AND p.deleted_at IS NULL
    AND p.region_id = %(region)s
"""
# What is to be known of roles with open sessions: see `RoleState`.
ROLES = """
SELECT r.name, r.id, r.compute_oid, r.no_login, r.sessions_end_at
FROM controlplane_role r JOIN controlplane_endpoint e ON e.branch_id = r.branch_id
WHERE e.id = %(endpoint)s AND r.name = ANY(%(names)s) AND r.deleted_at IS NULL
"""
CATALOG_MARK = "SELECT catalog_mark FROM controlplane_branch WHERE id = %(branch)s"
# One statement, so that the state and the operations are of the same moment.
STATE = """
SELECT e.branch_id, e.disabled, e.current_state, e.started_at,
    coalesce((
        SELECT jsonb_agg(
            jsonb_build_object('action', o.action, 'status', o.status, 'details', o.details)
            ORDER BY o.created_at)
        FROM controlplane_operation o
        WHERE o.endpoint_id = e.id AND o.project_id = e.project_id
            AND o.status IN ('scheduling', 'running', 'cancelling')
    ), '[]') AS unfinished,
    b.protected, jsonb_build_object(
        'allowed_ips', p.settings -> 'allowed_ips',
        'block_public_connections', p.settings -> 'block_public_connections')::text AS access
FROM controlplane_endpoint e
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_branch b ON b.id = e.branch_id
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL
"""
FAILURE = """
SELECT error FROM controlplane_operation
WHERE id = ANY(%(ids)s) AND action = %(action)s
    AND status IN ('failed', 'cancelling', 'cancelled')
ORDER BY created_at DESC LIMIT 1
"""
ALIVE = """
UPDATE controlplane_region SET proxy_seen_at = now() WHERE id = %(region)s
RETURNING clock_timestamp()
"""
# The id alone is locked, so that two proxies' reports never wait for each other in a circle.
USED = """
UPDATE controlplane_endpoint SET last_active = greatest(last_active, %(at)s)
WHERE id = %(endpoint)s
"""

# A report that was counted already counts no more.
TRAFFIC = "SELECT perch_note_traffic(%s, %s, %s, %s, %s)"


@dataclass(frozen=True, slots=True)
class RouteRow:
    """An endpoint as one role sees it, by the rows: what SQL has done in its compute lately may
    not be in them yet. The role's fields are null where no role has that name."""

    endpoint_id: str
    account_id: int
    plan: str
    disabled: bool
    pooler_enabled: bool
    branch_id: str
    # Its compute may be asked.
    is_active: bool
    role_id: int | None
    verifier: str | None
    no_login: bool | None
    valid_until: datetime | None
    compute_oid: int | None
    password_is_newer: bool | None
    sessions_end_at: datetime | None
    # The numbers of deleted roles that the compute may still have.
    doomed: Sequence[int]
    # Whether its branch is, and what the project's settings say of addresses, as JSON.
    protected: bool
    access: str

    @property
    def connections(self) -> int | None:
        """How many the account's plan allows; None for any number."""
        return LIMITS[self.plan].connections


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role with open sessions, by the rows."""

    name: str
    id: int
    compute_oid: int | None
    no_login: bool
    sessions_end_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnfinishedOperation:
    action: str
    status: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateRow:
    """An endpoint and what is under way for it, oldest first, at one moment."""

    branch_id: str
    disabled: bool
    current_state: str
    # Of the last start; None before the first.
    started_at: datetime | None
    unfinished: Sequence[UnfinishedOperation]
    # As in `RouteRow`.
    protected: bool
    access: str

    def __post_init__(self) -> None:
        operations = [UnfinishedOperation(**row) for row in self.unfinished]  # type: ignore[arg-type]
        object.__setattr__(self, "unfinished", operations)


async def find_route(
    connection: Connection, *, endpoint_id: str, role: str, region: str
) -> RouteRow | None:
    """None where the region has no such endpoint."""
    cursor = connection.cursor(row_factory=class_row(RouteRow))
    await cursor.execute(ROUTE, {"endpoint": endpoint_id, "role": role, "region": region})
    return await cursor.fetchone()


async def find_state(connection: Connection, endpoint_id: str) -> StateRow | None:
    """None where no endpoint has this id, or has it any more."""
    cursor = connection.cursor(row_factory=class_row(StateRow))
    await cursor.execute(STATE, {"endpoint": endpoint_id})
    return await cursor.fetchone()


async def find_roles(
    connection: Connection, endpoint_id: str, *, names: Sequence[str]
) -> dict[str, RoleState]:
    """By name, of those that there are on the endpoint's branch."""
    cursor = connection.cursor(row_factory=class_row(RoleState))
    await cursor.execute(ROLES, {"endpoint": endpoint_id, "names": list(names)})
    return {row.name: row for row in await cursor.fetchall()}


async def find_catalog_mark(connection: Connection, branch_id: str) -> str:
    """Of the catalog that the branch's rows were last brought to."""
    cursor = await connection.execute(CATALOG_MARK, {"branch": branch_id})
    row = await cursor.fetchone()
    return str(row[0]) if row else ""


async def find_failure(
    connection: Connection, operations: Sequence[uuid.UUID], *, action: str
) -> str | None:
    """Why the newest of these operations came to nothing, of those with this action; None if none
    did."""
    cursor = await connection.execute(FAILURE, {"ids": list(operations), "action": action})
    row = await cursor.fetchone()
    return str(row[0]) if row else None


async def report_alive(connection: Connection, *, region: str) -> None:
    """Say that the proxy is there, and hear what time it is in the database."""
    asked = clock.running_for()
    cursor = await connection.execute(ALIVE, {"region": region})
    if row := await cursor.fetchone():
        clock.take_in(row[0], asked=asked, answered=clock.running_for())


async def report_used(connection: Connection, endpoint_id: str, *, at: datetime) -> None:
    """Note that a client came to the endpoint `at` this time."""
    await connection.execute(USED, {"endpoint": endpoint_id, "at": at})


async def report_traffic(
    connection: Connection, *, reporter: uuid.UUID, number: int, sent: Mapping[tuple[str, str], int]
) -> None:
    """Count the bytes sent to clients, by endpoint and branch, once for each number of the
    reporter's; the branch is "" for the endpoint's own. Numbers grow."""
    endpoints, branches = [key[0] for key in sent], [key[1] for key in sent]
    values = [reporter, number, endpoints, branches, list(sent.values())]
    await connection.execute(TRAFFIC, values)
