"""The directory of a real host. It reads the metadata and has computes started."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from django.db import DatabaseError

from controlplane.compute.host.filesystem import LockTimeout
from controlplane.events.refusals import Refusal, refusals
from controlplane.events.types import EventType
from controlplane.models.connecting import ServedHost, find_peers, find_waited_for
from controlplane.operations.actions.table import MAKES_BRANCH
from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.directory.changes import ChangeListener, ComputeStates
from controlplane.proxy.directory.compute_logins import ComputeLogins
from controlplane.proxy.directory.control_database import ControlDatabase, ServiceCalls
from controlplane.proxy.directory.host_calls import HostCalls
from controlplane.proxy.directory.interface import (
    Clients,
    ComputeAddress,
    PeerHost,
    RoleIdentity,
    Route,
    Tally,
    Traffic,
)
from controlplane.proxy.directory.route_lookup import RouteLookup
from controlplane.proxy.directory.usage_reports import ActivityReports, Problems, TrafficReports
from controlplane.proxy.directory.waking import ComputeRunWatcher, Waker
from controlplane.proxy.wire.errors import ENDED, ControlPlaneUnavailable, HostUnavailable

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# Seconds after its start in which a proxy waits for the worker that may be starting too, and after
# which it asks again.
_WORKER_START_TIMEOUT = 20.0
_RETRY_DELAY = 0.2
# Seconds after which it tries again to take out a lost receiver.
_TAKE_OUT_INTERVAL = 1.0
# Seconds that a client waits while its endpoint is stopped on one host and started on another.
_MOVE_TIMEOUT = 10.0
# Seconds between two reads of the other hosts, and the least if somebody asks for the second.
_READ_INTERVAL = 10.0
_MIN_READ_INTERVAL = 0.5
# Seconds that writing the last refusals may take when the proxy exits.
_LAST_WRITE_TIMEOUT = 2.0


class DatabaseDirectory:
    """Implements `interface.Directory`, which describes the methods. `run` must be running for as
    long as the directory is used."""

    def __init__(
        self,
        conninfo: str,
        served: ServedHost,
        *,
        host: HostCalls,
        problems: Callable[[], Problems] = list,
    ) -> None:
        """`problems` returns the proxy's own problems, which it publishes."""
        self._loop = asyncio.get_running_loop()
        # Until when the worker and the database are restarted together with the proxy.
        self._worker_starts_until = self._loop.time() + _WORKER_START_TIMEOUT
        self._restarts_until = 0.0
        self._host = host
        self._database = ControlDatabase(conninfo)
        states = ComputeStates(self._database, served.id)
        self._logins = ComputeLogins(self._database, host)
        self._routes = RouteLookup(self._database, served, states, self._logins)
        caches: list[EndpointCache[Any]] = [self._routes.cache, self._routes.found, states.cache]
        self._changes = ChangeListener(self._database, caches)
        self._compute_runs = ComputeRunWatcher(self._park)
        self._waker = Waker(self._database, states, self._changes, self._compute_runs, host)
        self._served = served
        # The other hosts of the region, as last read from the rows.
        self._peers: Mapping[str, PeerHost] = MappingProxyType({})
        self._peers_read_at = 0.0
        self._reading_peers = asyncio.Lock()
        self._clients: Clients | None = None
        self._activity_reports = ActivityReports(self._database, served, problems)
        self._traffic = Traffic()
        self._traffic_reports = TrafficReports(self._database, self._traffic)
        self._calls = ServiceCalls()
        # Each may wait for the database, which nothing else is to wait for.
        self._take_outs = ThreadPoolExecutor(8, thread_name_prefix="take-outs")

    async def run(self, clients: Clients) -> None:
        """Listens for changes and sends reports until cancelled.

        Ends the connections among `clients` that a change no longer permits.
        """
        self._clients = clients
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._changes.run(clients))
                await self.ready()
                tasks.create_task(self._logins.run(clients))
                tasks.create_task(self._keep_reading_peers())
                refusals.begin()
                tasks.create_task(self._activity_reports.run())
                tasks.create_task(self._traffic_reports.run())
        finally:
            with contextlib.suppress(ControlPlaneUnavailable):
                await self._traffic_reports.report()
            with contextlib.suppress(ControlPlaneUnavailable):
                await self._calls.call(refusals.close, timeout=_LAST_WRITE_TIMEOUT)
            self._calls.close()
            self._take_outs.shutdown(wait=False, cancel_futures=True)
            self._waker.close()
            self._compute_runs.close()
            await self._database.close()

    def _park(self, endpoint_id: str) -> None:
        """Parks the endpoint's clients: its compute has died."""
        if self._clients is not None:
            self._clients.park(endpoint_id, ENDED)

    def expect_restart(self, *, timeout: float) -> None:
        """Lets clients wait, up to their own time limits, if the database or the worker is away in
        the next `timeout` seconds: an upgrade restarts both."""
        self._restarts_until = self._loop.time() + timeout

    async def _retry_through_restart(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Returns what `ask` returns. Calls it again while what it needs is being restarted."""
        while True:
            try:
                return await ask()
            except (ControlPlaneUnavailable, HostUnavailable) as error:
                until = self._restarts_until
                if isinstance(error, HostUnavailable):
                    until = max(until, self._worker_starts_until)
                if self._loop.time() >= until:
                    raise
            await asyncio.sleep(_RETRY_DELAY)

    async def ready(self) -> None:
        """Returns once the database has answered and its change notifications are received."""
        await self._changes.are_received.wait()

    def counting(self, endpoint_id: str) -> AbstractContextManager[Tally]:
        return self._traffic.counting(endpoint_id, self._changes.branch_of(endpoint_id))

    def note_refusal(
        self, route: Route | None, role: str, *, address: str, is_outside: bool = False
    ) -> None:
        kind = EventType.CONNECTION_NOT_ALLOWED if is_outside else EventType.CONNECTION_REFUSED
        if route is None:
            refusals.note(Refusal(kind, address=address))
            return
        # A name that is not a role's may be anything, even a password, so it is not recorded.
        name = role if route.verifier else ""
        refusals.note(
            Refusal(kind, route.account_id, name, address=address, endpoint_id=route.endpoint_id)
        )

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.route`. Raises ControlPlaneUnavailable."""
        find = partial(self._retry_through_restart, partial(self._routes.find, endpoint_id, role))
        until = self._loop.time() + _MOVE_TIMEOUT
        route = await find()
        while route is not None and route.is_moving and self._loop.time() < until:
            # The client is led to the host that the project moves to.
            changed = self._changes.next_change(endpoint_id)
            if (route := await find()) is not None and route.is_moving:
                await self._changes.wait_for(changed)
                route = await find()
        return route

    def recent(self, endpoint_id: str, role: str) -> tuple[Route, ComputeAddress] | None:
        route, address = self._routes.recent(endpoint_id, role), self._waker.running(endpoint_id)
        if route is None or address is None or route.confirmed_by != address.run:
            return None
        self._activity_reports.note_use(endpoint_id)
        return route, address

    async def route_of_any_role(self, endpoint_id: str) -> Route | None:
        return await self._routes.of_any_role(endpoint_id)

    def peers(self) -> Mapping[str, PeerHost]:
        return self._peers

    async def _keep_reading_peers(self) -> None:
        while True:
            await self.read_peers()
            await asyncio.sleep(_READ_INTERVAL)

    async def read_peers(self) -> None:
        async with self._reading_peers:
            if self._peers_read_at and self._loop.time() - self._peers_read_at < _MIN_READ_INTERVAL:
                return
            self._peers_read_at = self._loop.time()
            try:
                rows = await self._database.ask(partial(find_peers, served=self._served))
            except ControlPlaneUnavailable as error:
                log.warning("cannot read the region's hosts", extra={"error": str(error)})
                return
        found = {
            row.id: PeerHost(row.id, row.peer_address, row.peer_port, row.peer_certificate)
            for row in rows
        }
        if found != self._peers:
            self._peers = MappingProxyType(found)

    async def open_receiver(self) -> socket.socket | None:
        return await self._opened("open_receiver")

    async def open_log_source(self, receiver_id: str, host_id: str) -> socket.socket | None:
        return await self._opened("open_log_source", receiver_id, host_id)

    async def end_log_source(self, receiver_id: str) -> None:
        take_out = partial(self._host.call, "take_out_ended", receiver_id)
        while True:
            try:
                if await self._loop.run_in_executor(self._take_outs, take_out):
                    return
            except (OSError, LockTimeout, DatabaseError, ControlPlaneUnavailable) as error:
                log.warning("receiver not taken out", extra={"error": repr(error)})
            await asyncio.sleep(_TAKE_OUT_INTERVAL)

    async def _opened(self, call: str, *arguments: str) -> socket.socket | None:
        try:
            descriptor = await asyncio.to_thread(self._host.call, call, *arguments)
        except (OSError, ControlPlaneUnavailable) as error:
            log.warning("not connected", extra={"call": call, "error": str(error)})
            return None
        return None if descriptor is None else socket.socket(fileno=descriptor)

    def lookup_time(self) -> float:
        return self._routes.lookups.usual

    async def rules(self, endpoint_id: str, role: str) -> AccessRules | None:
        """See `Directory.rules`. Raises ControlPlaneUnavailable."""
        return await self._retry_through_restart(partial(self._routes.rules, endpoint_id, role))

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        """See `Directory.confirm`. Raises ControlPlaneUnavailable as well."""
        confirm = partial(self._routes.confirm, route, role, address, pooled=pooled)
        return await self._retry_through_restart(confirm)

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """See `Directory.wake`. Raises DisabledEndpointRefused, QuotaUsedUp, WakeFailed."""
        self._activity_reports.note_use(endpoint_id)
        wake = partial(self._waker.wake, endpoint_id, pooled=pooled, refused=refused)
        return await self._retry_through_restart(wake)

    async def waited_for(self, endpoint_id: str) -> tuple[str, bool]:
        with contextlib.suppress(ControlPlaneUnavailable):
            ask = partial(find_waited_for, endpoint_id=endpoint_id)
            if found := await self._database.ask(ask):
                action, branch_id = found
                if action in MAKES_BRANCH:
                    return f"its branch {branch_id} is not ready yet, {action} still runs", True
                return f"it waits for the operation {action}", False
        return "", False
