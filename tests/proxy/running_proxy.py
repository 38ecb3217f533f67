"""A proxy in a thread of its own, with a directory in memory whose answers a test chooses. The
tests are its clients, over real sockets."""

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
import uvloop

from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.directory.interface import (
    ComputeAddress,
    PeerHost,
    RoleIdentity,
    Route,
    Tally,
    Traffic,
)
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.proxy.wire.peer_tls import PeerCertificate
from controlplane.proxy.wire.tls import TlsIdentity
from tests.support.waiting import wait_for

REGION_HOST = "localhost"
T = TypeVar("T")


@dataclass
class Endpoint:
    """An endpoint in the directory. Its wake waits while `asleep` is not set, and fails if
    `failure` is set."""

    address: ComputeAddress
    verifiers: dict[str, str] = field(default_factory=dict)
    pooler: ComputeAddress | None = None
    account_id: int = 1
    account_connections: int | None = None
    disabled: bool = False
    rules: AccessRules | None = None
    # The host that the compute is on; "" for the one of this directory.
    host_id: str = ""
    asleep: bool = False
    failure: Exception | None = None
    # See `Directory.waited_for`.
    waits_for: tuple[str, bool] = ("", False)
    wakes: int = 0
    cancelled_wakes: int = 0
    refused: list[ComputeAddress] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryDirectory:
    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        # The other hosts of the region. The tests replace it, as a change of the rows would.
        self.hosts: Mapping[str, PeerHost] = {}
        # Whether it tells where endpoints are before their clients have named a role.
        self.tells_early = False
        self.traffic = Traffic()
        # For each refusal: the endpoint if it exists, the role, and the client's address.
        self.refusals: list[tuple[str | None, str, str]] = []
        self.outsiders: list[tuple[str | None, str, str]] = []

    def counting(self, endpoint_id: str) -> AbstractContextManager[Tally]:
        return self.traffic.counting(endpoint_id, "")

    def note_refusal(
        self, route: Route | None, role: str, *, address: str, is_outside: bool = False
    ) -> None:
        noted = self.outsiders if is_outside else self.refusals
        noted.append((route.endpoint_id if route else None, role, address))

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        return self._route(endpoint_id, role)

    def _route(self, endpoint_id: str, role: str) -> Route | None:
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is None:
            return None
        verifier = endpoint.verifiers.get(role)
        return Route(
            endpoint_id,
            endpoint.account_id,
            verifier,
            disabled=endpoint.disabled,
            account_connections=endpoint.account_connections,
            rules=endpoint.rules,
            host_id=endpoint.host_id,
            elsewhere=f"the host {endpoint.host_id}" if endpoint.host_id else None,
        )

    def recent(self, endpoint_id: str, role: str) -> tuple[Route, ComputeAddress] | None:
        route, endpoint = self._route(endpoint_id, role), self.endpoints.get(endpoint_id)
        if not endpoint or not route or route.elsewhere or endpoint.asleep or endpoint.failure:
            return None
        return route, endpoint.address

    async def route_of_any_role(self, endpoint_id: str) -> Route | None:
        if not self.tells_early:
            raise ControlPlaneUnavailable
        return self._route(endpoint_id, "")

    def peers(self) -> Mapping[str, PeerHost]:
        return self.hosts

    async def read_peers(self) -> None:
        pass

    async def open_receiver(self) -> socket.socket | None:
        return None

    async def open_log_source(self, receiver_id: str, host_id: str) -> socket.socket | None:
        return None

    async def end_log_source(self, receiver_id: str) -> None:
        pass

    def lookup_time(self) -> float:
        return 0.0

    async def rules(self, endpoint_id: str, role: str) -> AccessRules | None:
        return self.endpoints[endpoint_id].rules

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        return route.identity

    async def waited_for(self, endpoint_id: str) -> tuple[str, bool]:
        return self.endpoints[endpoint_id].waits_for

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        endpoint = self.endpoints[endpoint_id]
        endpoint.wakes += 1
        if refused is not None:
            endpoint.refused.append(refused)
        if endpoint.asleep:
            try:
                await endpoint.woken.wait()
            except asyncio.CancelledError:
                endpoint.cancelled_wakes += 1
                raise
        if endpoint.failure is not None:
            raise endpoint.failure
        if pooled:
            assert endpoint.pooler is not None
            return endpoint.pooler
        return endpoint.address


class RunningProxy:
    def __init__(
        self,
        settings: ProxySettings,
        directory: MemoryDirectory,
        identity: TlsIdentity,
        peer: PeerCertificate | None = None,
    ) -> None:
        self.directory = directory
        self._settings = settings
        self._identity = identity
        self._peer = peer
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.proxy = Proxy(self._settings, self.directory, self._identity, self._peer)
        await self.proxy.start()
        self.port = self.proxy.port
        self._started.set()
        await self._stop.wait()
        await self.proxy.stop()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the proxy's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def drop(self, endpoint_id: str) -> int:
        async def drop() -> int:
            return self.proxy.drop(endpoint_id, "the endpoint was deleted")

        return self.call(drop())

    def drain(self) -> "Future[None]":
        """Let the proxy accept no more clients. The result is there once it has stopped."""

        async def drain() -> None:
            self.proxy.drain()

        self.call(drain())
        return asyncio.run_coroutine_threadsafe(self.proxy.serve(), self.loop)

    def enforce_rules(self, endpoint_id: str, rules: AccessRules | None) -> int:
        async def hold() -> int:
            return self.proxy.enforce_rules(endpoint_id, rules)

        return self.call(hold())

    def wake_up(self, endpoint_id: str) -> None:
        endpoint = self.directory.endpoints[endpoint_id]
        endpoint.asleep = False
        self.loop.call_soon_threadsafe(endpoint.woken.set)

    def sessions(self) -> int:
        return len(self.proxy.sessions)

    def tasks(self) -> int:
        """Return the number of tasks in the proxy's loop, without the one that keeps it running."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 2

        return self.call(count())

    def close_idle_sessions(self) -> None:
        """Close the sessions in computes that requests over HTTP have left open."""

        async def close() -> None:
            self.proxy.queries.pool.drop()

        self.call(close())

    def secret_of(self, pid: int) -> bytes:
        """Return the secret half of a cancel key that the proxy gave to a client."""
        keys = [session.key for session in self.proxy.sessions.all() if session.key is not None]
        return next(key.secret for key in keys if key.pid == pid)

    def parameters(self, endpoint_id: str, **parameters: Any) -> dict[str, Any]:
        """Return the parameters of a libpq client; by default a TLS connection that names the
        endpoint by SNI."""
        return {
            "host": f"{endpoint_id}.{REGION_HOST}",
            "hostaddr": "127.0.0.1",
            "port": self.port,
            "dbname": "postgres",
            "sslmode": "require",
            "connect_timeout": 30,
            **parameters,
        }

    def connect(self, endpoint_id: str, **parameters: Any) -> "psycopg.Connection[tuple[Any, ...]]":
        given = self.parameters(endpoint_id, **parameters)
        return psycopg.connect(autocommit=True, **given)


def plain(endpoint_id: str) -> dict[str, str]:
    """Return the parameters of a client without TLS. Only `options` can name its endpoint."""
    return {"host": "127.0.0.1", "sslmode": "disable", "options": f"endpoint={endpoint_id}"}


@contextmanager
def running_proxy(
    identity: TlsIdentity,
    directory: MemoryDirectory,
    peer: PeerCertificate | None = None,
    /,
    **settings: Any,
) -> Iterator[RunningProxy]:
    """Run a proxy on a free port. Afterwards, nothing of any client may be left: no session, task
    or descriptor."""
    given = {"domains": [REGION_HOST], "secret": b"secret", "port": 0, **settings}
    proxy = RunningProxy(ProxySettings(**given), directory, identity, peer)
    proxy.start()
    descriptors = open_descriptors()
    try:
        yield proxy
        wait_for(lambda: proxy.sessions() == 0, "the sessions to end")
        wait_for(lambda: proxy.tasks() == 0, "the tasks to end")
        proxy.close_idle_sessions()
        wait_for(lambda: open_descriptors() <= descriptors, "the descriptors to be closed")
    finally:
        proxy.stop()


def open_descriptors() -> int:
    return len(os.listdir(f"/proc/{os.getpid()}/fd"))
