"""The proxy's queries: which roles may connect to an endpoint, and whether its compute can be used.

They use psycopg's asynchronous connections instead of the ORM, which would block the proxy's event
loop. Each connection must be in autocommit mode. All functions raise psycopg.Error.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg.types.json import Json

from controlplane import clock
from controlplane.models.account import LIMITS

Connection = AsyncConnection[Any]

# The notification channel on which triggers (migration 0001_squashed_0029) send the id of
# each endpoint that changed.
CHANGES = "perch_endpoints"

ROUTE = """
SELECT e.id AS endpoint_id, p.account_id, a.plan,
    e.disabled OR a.disabled_at IS NOT NULL AS disabled, e.pooler_enabled, e.branch_id,
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
        'block_public_connections', p.settings -> 'block_public_connections')::text AS access,
    h.id AS host_id,
    CASE WHEN h.id <> %(host)s
        THEN format('%%s.%%s, port %%s (the host "%%s")', e.id, h.address, h.port, h.id)
    END AS elsewhere,
    EXISTS (
        SELECT FROM controlplane_operation o
        WHERE o.endpoint_id = e.id AND o.project_id = e.project_id AND o.details ? 'announced'
            AND o.status IN ('scheduling', 'running', 'cancelling')
    ) AS is_moving
FROM controlplane_endpoint e
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_host h ON h.id = p.host_id
JOIN controlplane_branch b ON b.id = e.branch_id
JOIN controlplane_account a ON a.id = p.account_id
LEFT JOIN controlplane_role r
    ON r.branch_id = e.branch_id AND r.name = %(role)s AND r.deleted_at IS NULL
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL AND p.deleted_at IS NULL
    AND h.region_id = %(region)s
"""
# Reads the `RoleState` of roles with open sessions.
ROLES = """
SELECT r.name, r.id, r.compute_oid, r.no_login, r.sessions_end_at
FROM controlplane_role r JOIN controlplane_endpoint e ON e.branch_id = r.branch_id
WHERE e.id = %(endpoint)s AND r.name = ANY(%(names)s) AND r.deleted_at IS NULL
"""
CATALOG_MARK = "SELECT catalog_mark FROM controlplane_branch WHERE id = %(branch)s"
# One statement, so that the endpoint's state and its operations are from the same snapshot. What
# waits for the end of a move, which may take long, does nothing to the endpoint yet.
STATE = """
SELECT e.branch_id, e.disabled OR a.disabled_at IS NOT NULL AS disabled, e.current_state,
    e.started_at, p.host_id, a.id AS account_id,
    coalesce((
        SELECT jsonb_agg(
            jsonb_build_object('action', o.action, 'status', o.status, 'details', o.details)
            ORDER BY o.created_at)
        FROM controlplane_operation o
        WHERE o.endpoint_id = e.id AND o.project_id = e.project_id
            AND o.status IN ('scheduling', 'running', 'cancelling')
            AND NOT (
                o.dispatched_at IS NULL AND o.action <> 'start_compute' AND EXISTS (
                    SELECT FROM controlplane_operation m
                    WHERE m.project_id = o.project_id AND m.created_at < o.created_at
                        AND m.action = 'move_project'
                        AND m.status IN ('scheduling', 'running', 'cancelling')))
    ), '[]') AS unfinished,
    b.protected, jsonb_build_object(
        'allowed_ips', p.settings -> 'allowed_ips',
        'block_public_connections', p.settings -> 'block_public_connections')::text AS access
FROM controlplane_endpoint e
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_branch b ON b.id = e.branch_id
JOIN controlplane_account a ON a.id = p.account_id
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL
"""
PEERS = """
SELECT id, peer_address, peer_port, peer_certificate
FROM controlplane_host WHERE region_id = %(region)s AND id <> %(host)s AND peer_certificate <> ''
"""
FAILURE = """
SELECT error FROM controlplane_operation
WHERE id = ANY(%(ids)s) AND action = %(action)s
    AND status IN ('failed', 'cancelling', 'cancelled')
ORDER BY created_at DESC LIMIT 1
"""
# The first of the operations that a start of the endpoint waits for.
WAITED_FOR = """
SELECT o.action, e.branch_id FROM controlplane_endpoint e
JOIN controlplane_operation o ON o.project_id = e.project_id
WHERE e.id = %(endpoint)s AND o.status IN ('scheduling', 'running', 'cancelling')
    AND o.resources && ARRAY[e.id, e.branch_id, e.project_id] AND o.action <> 'start_compute'
ORDER BY o.created_at LIMIT 1
"""
ALIVE = """
UPDATE controlplane_host SET proxy_seen_at = now(), proxy_problems = %(problems)s
WHERE id = %(host)s AND state_id = %(state_id)s AND state_place = %(state_place)s
RETURNING clock_timestamp()
"""
# Each report locks only one row, so the reports of two proxies cannot deadlock.
USED = """
UPDATE controlplane_endpoint SET last_active = greatest(last_active, %(at)s)
WHERE id = %(endpoint)s
"""

# A report that was counted before has no effect.
TRAFFIC = "SELECT perch_note_traffic(%s, %s, %s, %s, %s)"


@dataclass(frozen=True, slots=True)
class ServedHost:
    """The host that the proxy serves."""

    id: str
    region: str
    # Its state directory (`compute.data.state_directory`): the identity, and the place.
    state_id: str
    state_place: str


@dataclass(frozen=True, slots=True)
class RouteRow:
    """An endpoint and one role, by the rows, which may not contain recent changes by SQL in the
    compute. The role's fields are None if no role has that name."""

    endpoint_id: str
    account_id: int
    plan: str
    disabled: bool
    pooler_enabled: bool
    branch_id: str
    # Whether the proxy can ask the endpoint's compute about the role.
    is_active: bool
    role_id: int | None
    verifier: str | None
    no_login: bool | None
    valid_until: datetime | None
    compute_oid: int | None
    password_is_newer: bool | None
    sessions_end_at: datetime | None
    # The oids of deleted roles that the compute may still have.
    doomed: Sequence[int]
    # Whether the branch is protected, and the project's settings about addresses, as JSON.
    protected: bool
    access: str
    # The host that the compute is on.
    host_id: str = ""
    # Where to connect instead, for the client, if that is another host of the region.
    elsewhere: str | None = None
    # Whether it is about to be stopped there and started on another host.
    is_moving: bool = False

    @property
    def connections(self) -> int | None:
        """How many connections the account's plan allows; None for any number."""
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
class PeerRow:
    """Another host of the region that has published how its proxy is reached by others."""

    id: str
    peer_address: str
    peer_port: int
    peer_certificate: str


@dataclass(frozen=True, slots=True)
class UnfinishedOperation:
    action: str
    status: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateRow:
    """An endpoint and its unfinished operations, oldest first, from one snapshot."""

    branch_id: str
    disabled: bool
    current_state: str
    # When it was last started; None before the first start.
    started_at: datetime | None
    # The host that its compute is on.
    host_id: str
    account_id: str
    unfinished: Sequence[UnfinishedOperation]
    # As in `RouteRow`.
    protected: bool
    access: str

    def __post_init__(self) -> None:
        operations = [UnfinishedOperation(**row) for row in self.unfinished]  # type: ignore[arg-type]
        object.__setattr__(self, "unfinished", operations)


async def find_route(
    connection: Connection, *, endpoint_id: str, role: str, served: ServedHost
) -> RouteRow | None:
    """Read the endpoint and the role; None if the host's region has no such endpoint."""
    cursor = connection.cursor(row_factory=class_row(RouteRow))
    values = {"endpoint": endpoint_id, "role": role, "host": served.id, "region": served.region}
    await cursor.execute(ROUTE, values)
    return await cursor.fetchone()


async def find_state(connection: Connection, endpoint_id: str) -> StateRow | None:
    """Read the endpoint and its unfinished operations; None if it does not exist or is deleted."""
    cursor = connection.cursor(row_factory=class_row(StateRow))
    await cursor.execute(STATE, {"endpoint": endpoint_id})
    return await cursor.fetchone()


async def find_peers(connection: Connection, served: ServedHost) -> Sequence[PeerRow]:
    """Read the other hosts of the host's region that can be passed clients."""
    cursor = connection.cursor(row_factory=class_row(PeerRow))
    await cursor.execute(PEERS, {"host": served.id, "region": served.region})
    return await cursor.fetchall()


async def find_roles(
    connection: Connection, endpoint_id: str, *, names: Sequence[str]
) -> dict[str, RoleState]:
    """Read those of the named roles that exist on the endpoint's branch. Returns them by name."""
    cursor = connection.cursor(row_factory=class_row(RoleState))
    await cursor.execute(ROLES, {"endpoint": endpoint_id, "names": list(names)})
    return {row.name: row for row in await cursor.fetchall()}


async def find_catalog_mark(connection: Connection, branch_id: str) -> str:
    """Read the mark of the catalog that the branch's rows were last brought to; "" if there is
    none."""
    cursor = await connection.execute(CATALOG_MARK, {"branch": branch_id})
    row = await cursor.fetchone()
    return str(row[0]) if row else ""


async def find_failure(
    connection: Connection, operations: Sequence[uuid.UUID], *, action: str
) -> str | None:
    """The error of the newest of these operations that has this action and failed or was cancelled;
    None if there is no such operation."""
    cursor = await connection.execute(FAILURE, {"ids": list(operations), "action": action})
    row = await cursor.fetchone()
    return str(row[0]) if row else None


async def find_waited_for(connection: Connection, endpoint_id: str) -> tuple[str, str] | None:
    """The action of the first operation that a start of the endpoint waits for, and the endpoint's
    branch; None if it waits for none."""
    cursor = await connection.execute(WAITED_FOR, {"endpoint": endpoint_id})
    return await cursor.fetchone()


async def report_alive(
    connection: Connection, *, served: ServedHost, problems: Sequence[Mapping[str, str]]
) -> bool:
    """Write the proxy's sign of life with its problems, as {name, detail}, and set `clock` from the
    database's time. Returns False if the host is served from elsewhere."""
    sent_at = clock.running_for()
    values = {
        "host": served.id,
        "state_id": served.state_id,
        "state_place": served.state_place,
        "problems": Json(problems),
    }
    row = await (await connection.execute(ALIVE, values)).fetchone()
    if row:
        clock.adjust(row[0], sent_at=sent_at, answered_at=clock.running_for())
    return row is not None


async def report_used(connection: Connection, endpoint_id: str, *, at: datetime) -> None:
    """Note that a client used the endpoint at the time `at`."""
    await connection.execute(USED, {"endpoint": endpoint_id, "at": at})


async def report_traffic(
    connection: Connection, *, reporter: uuid.UUID, number: int, sent: Mapping[tuple[str, str], int]
) -> None:
    """Count the bytes sent to clients. `sent` maps (endpoint id, branch id) to bytes; a branch id
    "" stands for the endpoint's present branch. `number` must grow with each report of a reporter;
    a report whose number is not greater than the last is not counted."""
    endpoints, branches = [key[0] for key in sent], [key[1] for key in sent]
    values = [reporter, number, endpoints, branches, list(sent.values())]
    await connection.execute(TRAFFIC, values)
