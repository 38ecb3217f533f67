"""The directory of a real region: reads the control plane's rows, and has computes started.

What was read once is kept only while we hear of every change, by NOTIFY (see the migration
`0003_notify_of_changes`): so connecting to an active endpoint asks the database nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from django.db import OperationalError, close_old_connections
from psycopg.rows import namedtuple_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from controlplane.compute.compute import socket_dir
from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.pooler import PoolerUnavailable, ensure_pooler, pooler_socket
from controlplane.models import EndpointState as EndpointPhase
from controlplane.models import Role
from controlplane.operations.actions import ACTIONS, details_of
from controlplane.proxy.directory import ComputeAddress, Route
from controlplane.proxy.errors import EndpointDisabled, WakeFailed
from controlplane.services import waking
from controlplane.services.errors import EndpointDisabled as ServiceEndpointDisabled
from controlplane.services.errors import ServiceError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CHANNEL = "perch_endpoints"
# A notification may be lost with its connection; whoever waits looks again by itself.
LOOK_AGAIN = 1.0  # seconds
REPORT_EVERY = 2.0  # seconds
MOST_ROUTES = 50_000

ROUTE = """
SELECT e.id, e.disabled, e.pooler_enabled, r.verifier
FROM controlplane_endpoint e
JOIN controlplane_project p ON p.id = e.project_id
LEFT JOIN controlplane_role r
    ON r.branch_id = e.branch_id AND r.name = %(role)s
    AND r.deleted_at IS NULL AND NOT r.no_login
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL AND p.deleted_at IS NULL
    AND p.region_id = %(region)s
"""
STATE = """
SELECT e.branch_id, e.disabled, e.current_state, e.started_at,
    array(SELECT jsonb_build_object('action', o.action, 'details', o.details)
        FROM controlplane_operation o
        WHERE o.endpoint_id = e.id AND o.project_id = e.project_id
            AND o.status IN ('scheduling', 'running')) AS unfinished
FROM controlplane_endpoint e
WHERE e.id = %(endpoint)s AND e.deleted_at IS NULL
"""
FAILURE = "SELECT error FROM controlplane_operation WHERE id = ANY(%(ids)s) AND status = 'failed'"
REPORT = "UPDATE controlplane_region SET proxy_seen_at = now() WHERE id = %(region)s"
SEEN = """
UPDATE controlplane_endpoint SET last_active = greatest(last_active, to_timestamp(%(at)s))
WHERE id = %(endpoint)s
"""


@dataclass(frozen=True)
class EndpointState:
    """What decides whether an endpoint's compute can be used now."""

    branch_id: str
    disabled: bool
    # Tells one run of the compute from the next; None while it must be started first.
    run: str | None


class DatabaseDirectory:
    """See `directory.Directory`. `run` must go on beside for as long as it is used."""

    def __init__(self, conninfo: str, region: str) -> None:
        self.conninfo = conninfo
        self.region = region
        self.pool = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=8,
            open=False,
            kwargs={"autocommit": True, "row_factory": namedtuple_row},
        )
        self._hears_changes = False
        self._routes: dict[str, dict[str, Route]] = {}
        self._states: dict[str, EndpointState] = {}
        # The branch that each endpoint's clients were last let in to. Kept whatever we hear:
        # clients may be there who came before a change.
        self._served: dict[str, str] = {}
        self._pooled: dict[str, str] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._seen: dict[str, float] = {}

    async def run(self, drop: Callable[[str], Any]) -> None:
        """Hear of changes, and report, until cancelled.

        `drop` is called with the id of an endpoint whose clients must go: it was deleted,
        disabled or reassigned.
        """
        await self.pool.open(wait=False)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(drop))
                tasks.create_task(self._report())
        finally:
            await self.pool.close()

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.route`. Raises WakeFailed while the database does not answer."""
        if known := self._routes.get(endpoint_id, {}).get(role):
            return known
        hears = self._hears_changes
        row = await self._one(ROUTE, {"endpoint": endpoint_id, "role": role, "region": self.region})
        if row is None:
            return None
        route = Route(
            endpoint_id=row.id,
            verifier=row.verifier,
            disabled=row.disabled,
            always_pooled=row.pooler_enabled,
        )
        # Names that exist not are not kept: anybody may ask for any number of them.
        if hears and self._hears_changes and route.verifier is not None:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes.setdefault(endpoint_id, {})[role] = route
        return route

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """See `Directory.wake`. Raises EndpointDisabled, WakeFailed."""
        self._seen[endpoint_id] = time.time()
        state = self._states.get(endpoint_id) or await self._look(endpoint_id)
        if refused is not None and state.run == refused.run:
            state = await self._after_death(endpoint_id)
        if state.run is None:
            state = await self._start(endpoint_id)
        if state.disabled:
            raise EndpointDisabled
        self._served[endpoint_id] = state.branch_id
        return await self._address(endpoint_id, state, pooled=pooled)

    async def _address(
        self, endpoint_id: str, state: EndpointState, *, pooled: bool
    ) -> ComputeAddress:
        run = state.run or ""
        directory = socket_dir(endpoint_id)
        if not pooled:
            return ComputeAddress(directory / ".s.PGSQL.5432", run)
        if self._pooled.get(endpoint_id) != run:
            try:
                await asyncio.to_thread(
                    _freeing, partial(_start_pooler, directory), state.branch_id
                )
            except (PoolerUnavailable, LockTimeout) as error:
                raise WakeFailed(str(error)) from error
            self._pooled[endpoint_id] = run
        return ComputeAddress(pooler_socket(directory), run)

    async def _start(self, endpoint_id: str) -> EndpointState:
        """Have the endpoint started, and wait until it runs."""
        try:
            operations = await asyncio.to_thread(_freeing, waking.start_for_client, endpoint_id)
        except ServiceEndpointDisabled as error:
            raise EndpointDisabled from error
        except ServiceError as error:
            raise WakeFailed(error.message) from error
        while True:
            # Before the look: a change that comes right after it must not go unheard.
            changed = self._changed.setdefault(endpoint_id, asyncio.Event())
            state = await self._look(endpoint_id)
            if state.run is not None:
                return state
            if state.disabled:
                raise EndpointDisabled
            if failure := await self._one(FAILURE, {"ids": operations}):
                raise WakeFailed(f"endpoint could not start: {failure.error}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK_AGAIN)

    async def _after_death(self, endpoint_id: str) -> EndpointState:
        """The endpoint's state once it is known that its compute does not answer."""
        self._pooled.pop(endpoint_id, None)
        try:
            await asyncio.to_thread(_freeing, waking.notice_death, endpoint_id)
        except LockTimeout:
            log.info("compute silent, branch busy", extra={"endpoint": endpoint_id})
        return await self._look(endpoint_id)

    async def _look(self, endpoint_id: str) -> EndpointState:
        hears = self._hears_changes
        row = await self._one(STATE, {"endpoint": endpoint_id})
        if row is None:
            raise WakeFailed("endpoint cannot be found")
        # What is about to be suspended, to be restarted for new settings or to come up
        # elsewhere is of no use to a client.
        leaving = any(
            ACTIONS[one["action"]].keeps_clients_out(details_of(one["action"], one["details"]))
            for one in row.unfinished
        )
        usable = row.current_state == EndpointPhase.ACTIVE and not leaving
        state = EndpointState(
            branch_id=row.branch_id,
            disabled=row.disabled,
            run=row.started_at.isoformat() if usable else None,
        )
        if hears and self._hears_changes and usable:
            self._states[endpoint_id] = state
        return state

    async def _listen(self, drop: Callable[[str], Any]) -> None:
        """Hear of changes; while we cannot, nothing is kept."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self.conninfo, autocommit=True
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._hears_changes = True
                    for endpoint_id in list(self._served):
                        await self._take_in(endpoint_id, drop)
                    async for notification in connection.notifies():
                        await self._take_in(notification.payload, drop)
            except (psycopg.Error, WakeFailed) as error:
                log.warning("changes unheard", extra={"channel": CHANNEL, "error": str(error)})
            finally:
                self._hears_changes = False
                self._forget_all()
            await asyncio.sleep(LOOK_AGAIN)

    async def _take_in(self, endpoint_id: str, drop: Callable[[str], Any]) -> None:
        self._routes.pop(endpoint_id, None)
        self._states.pop(endpoint_id, None)
        if changed := self._changed.pop(endpoint_id, None):
            changed.set()
        served = self._served.get(endpoint_id)
        if served is None:
            return
        row = await self._one(STATE, {"endpoint": endpoint_id})
        if row is None or row.disabled or row.branch_id != served:
            self._served.pop(endpoint_id, None)
            log.info("connections dropped", extra={"endpoint": endpoint_id})
            drop(endpoint_id)

    def _forget_all(self) -> None:
        self._routes.clear()
        self._states.clear()
        for changed in self._changed.values():
            changed.set()
        self._changed.clear()

    async def _report(self) -> None:
        """Say that the proxy is alive, and which endpoints clients came to."""
        while True:
            try:
                async with self.pool.connection() as connection:
                    await connection.execute(REPORT, {"region": self.region})
                    seen, self._seen = self._seen, {}
                    for endpoint_id, at in seen.items():
                        await connection.execute(SEEN, {"endpoint": endpoint_id, "at": at})
            except psycopg.Error as error:
                log.warning("report failed", extra={"error": str(error)})
            await asyncio.sleep(REPORT_EVERY)

    async def _one(self, query: str, values: dict[str, Any]) -> Any:
        try:
            try:
                return await self._ask(query, values)
            except PoolTimeout:
                raise
            except psycopg.OperationalError:
                # It may have been restarted; then all that the pool holds is of no use.
                await self.pool.check()
                return await self._ask(query, values)
        except psycopg.Error as error:
            log.error("database silent", extra={"error": str(error)})
            raise WakeFailed("the control plane does not answer; try again") from error

    async def _ask(self, query: str, values: dict[str, Any]) -> Any:
        async with self.pool.connection(timeout=10) as connection:
            cursor = await connection.execute(query, values)
            return await cursor.fetchone()


def _freeing(call: Callable[[str], Result], key: str) -> Result:
    """Make the call, and give this thread's database connection back."""
    try:
        return call(key)
    except OperationalError as error:
        raise WakeFailed("the control plane does not answer; try again") from error
    finally:
        close_old_connections()


def _start_pooler(directory: Path, branch_id: str) -> None:
    with lock_branches(branch_id, timeout=10):
        ensure_pooler(branch_id, directory, roles=Role.that_may_connect(branch_id))
