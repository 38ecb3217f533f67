"""Connects an admitted client to its compute. It wakes the compute, and then checks once more that
the client may connect: only from the wake on do changes of the endpoint reach the client. Also has
the times of each client's way to its compute, from its acceptance on, for the log and the
figures."""

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.metrics import figures
from controlplane.proxy.directory.interface import ComputeAddress, ComputeStart
from controlplane.proxy.relaying.compute import ComputeGone, Connection
from controlplane.proxy.sessions.admitting import check_address
from controlplane.proxy.sessions.passing_on import find_elsewhere
from controlplane.proxy.wire.channel import closed_on_failure
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.errors import (
    ComputeRefused,
    ComputeUnreachable,
    ControlPlaneUnavailable,
    DisabledEndpointRefused,
    LetGo,
    LoginUnknown,
    ProjectMoved,
    ProxyError,
    QuotaUsedUp,
    WakeTimeout,
)

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

log = logging.getLogger(__name__)

_MIN_RETRY_DELAY = 0.02
_MAX_RETRY_DELAY = 0.5
# The outcomes in the figures of wakes that failed. The first class that matches is used.
_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (WakeTimeout, "timeout"),
    (ControlPlaneUnavailable, "unavailable"),
    (DisabledEndpointRefused, "refused"),
    (QuotaUsedUp, "refused"),
    (ProxyError, "failed"),
    (asyncio.CancelledError, "abandoned"),
)
# The member tcpi_last_data_recv of struct tcp_info, in milliseconds, after 8 bytes and 11 numbers.
_SINCE_LAST_DATA = struct.Struct("=52xI")


def waited_for_accept(connection: socket.socket) -> float:
    """Returns the seconds since the last data came from the client, or, before any, since the
    kernel has connected it. Called at once after the accept, this is how long the client has
    waited for that: after its first packet, every client waits for an answer."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SINCE_LAST_DATA.size)
    except OSError:
        return 0.0  # it has been reset
    if len(found) < _SINCE_LAST_DATA.size:
        return 0.0
    (milliseconds,) = _SINCE_LAST_DATA.unpack(found)
    return float(milliseconds) / 1000


@dataclass(slots=True)
class LoginTimes:
    """When a client was accepted, had sent its start-up message, and was admitted."""

    # Seconds that the client had waited for its acceptance.
    waited: float = 0.0
    accepted_at: float = field(default_factory=time.monotonic)
    requested_at: float = 0.0
    admitted_at: float = 0.0

    def parts(self) -> dict[str, float]:
        """Seconds. `tls` ends with the start-up message, so it includes the client's round
        trips."""
        return {
            "accepted": self.waited,
            "tls": self.requested_at - self.accepted_at,
            "password": self.admitted_at - self.requested_at,
        }


@dataclass(slots=True)
class Wake:
    """A client's way from its admission, or from its first word after it was parked, to a session
    in its compute."""

    began_at: float = field(default_factory=time.monotonic)
    # Set while the directory is asked to wake the compute.
    is_waking: bool = False
    # The start that the client has waited for; None if its compute ran already.
    start: ComputeStart | None = None
    connected_at: float = 0.0

    def parts(self) -> dict[str, float]:
        """Seconds, within this client's own wait: another client may have caused the start."""
        start = self.start
        assert start is not None
        handed_over = max(self.began_at, start.handed_over_at)
        running = max(handed_over, start.running_at)
        return {
            "handed_over": handed_over - self.began_at,
            "waited": running - handed_over,
            "connected": self.connected_at - running,
        }

    def fields(self, login: LoginTimes) -> dict[str, float | str]:
        """For a line of the log: the parts in milliseconds, and the start's operation."""
        if self.start is None:
            return _milliseconds(login.parts())
        parts = {**login.parts(), **self.parts()}
        return {**_milliseconds(parts), "operation": self.start.operation}

    def succeeded(self) -> None:
        """Notes that the client has a session in its compute."""
        self.connected_at = time.monotonic()
        if self.start is not None:
            figures.WAKES.labels("woken").observe(self.connected_at - self.began_at)
            observe_parts(self.parts())

    def failed(self, error: BaseException) -> None:
        """Counts the wake by its outcome, if it was one. A session that a running compute refuses
        was none."""
        if self.start is not None or self.is_waking:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "failed")
            figures.WAKES.labels(outcome).observe(time.monotonic() - self.began_at)

    def answered(
        self, endpoint_id: str, login: LoginTimes | None, first_answer: float | None = None
    ) -> None:
        """Logs all parts of the wake, once the compute has answered for the first time, after
        `first_answer` seconds. `login` has the times of a client that has just logged in. The
        requests of SQL over HTTP have neither."""
        around = login.parts() if login else {}
        if first_answer is not None:
            around["first_answer"] = first_answer
        observe_parts(around)
        assert self.start is not None
        fields = {
            "endpoint": endpoint_id,
            **_milliseconds({**around, **self.parts()}),
            "ms": round((sum(around.values()) + self.connected_at - self.began_at) * 1000, 1),
            "operation": self.start.operation,
        }
        log.info("woken", extra=fields)


def observe_parts(parts: dict[str, float]) -> None:
    """Notes the seconds of these parts of a wake."""
    for part, seconds in parts.items():
        figures.WAKE_PARTS.labels(part).observe(seconds)


def _milliseconds(parts: dict[str, float]) -> dict[str, float | str]:
    return {f"{part}_ms": round(seconds * 1000, 1) for part, seconds in parts.items()}


@dataclass(frozen=True)
class Connecting(Generic[Connection]):
    """Wakes the compute and connects to it by `connect`, as long as the client stays connected. A
    connection that the client may not have after all is closed."""

    client: "Session"
    destination: Destination
    connect: Callable[[ComputeAddress], Awaitable[Connection]]

    async def run(self) -> Connection:
        """Returns the connection. Raises ProxyError."""
        client = self.client
        client.wake = wake = Wake()
        actor = Actor(ActorType.CLIENT, name=client.role, address=client.client_address)
        try:
            with acting_as(actor):
                connection = await self._connect_patiently()
        except BaseException as error:
            wake.failed(error)
            raise
        wake.succeeded()
        return connection

    async def _connect_patiently(self) -> Connection:
        """Waits longer than usual while the endpoint's branch is being made."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await self._wake_and_connect()
            except WakeTimeout:
                waits_for, is_made = await self.client.proxy.directory.waited_for(
                    self.destination.endpoint_id
                )
                waited = loop.time() - began
                if not is_made or waited >= self.client.proxy.settings.branch_timeout:
                    waited = max(self.client.proxy.settings.wake_timeout, round(waited))
                    raise WakeTimeout(waited, waits_for) from None

    async def _wake_and_connect(self) -> Connection:
        refused: ComputeGone | None = None
        refused_address = None
        pause = _MIN_RETRY_DELAY
        client = self.client
        client.is_connecting = True
        client.channel.watch(client.abandon)
        try:
            async with asyncio.timeout(self.client.proxy.settings.wake_timeout):
                while True:
                    client.wake.is_waking = True
                    address = await self._find_compute(refused_address)
                    client.wake.is_waking = False
                    if address is None:
                        await asyncio.sleep(pause)
                        pause = min(pause * 2, _MAX_RETRY_DELAY)
                        continue
                    client.wake.start = address.start or client.wake.start
                    await self._check_address_again()
                    client.must_confirm_again = False
                    if refused_address is not None and refused_address.run != address.run:
                        # The compute was restarted, so the refusal says nothing about this run.
                        pause = _MIN_RETRY_DELAY
                    try:
                        connection = await self._start_session(address)
                        if not client.must_confirm_again:
                            return connection
                        connection.close()
                        raise LoginUnknown
                    except LoginUnknown:
                        refused = ComputeGone("the compute did not confirm the role")
                        refused_address = address
                    except ComputeGone as gone:
                        if gone.final and gone.packet and address == refused_address:
                            raise ComputeRefused(gone.packet) from gone
                        refused, refused_address = gone, address
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _MAX_RETRY_DELAY)
        except TimeoutError:
            if refused is None:
                raise WakeTimeout(self.client.proxy.settings.wake_timeout) from None
            if refused.packet is not None:
                raise ComputeRefused(refused.packet) from None
            raise ComputeUnreachable from None
        finally:
            client.is_connecting = False
            client.channel.unwatch()

    async def _find_compute(self, refused: ComputeAddress | None) -> ComputeAddress | None:
        """Wakes the compute. Returns its address, or the other host that its project has moved to;
        None if this proxy has not been told of the move yet. Raises ProxyError."""
        try:
            return await self.client.proxy.wakes.wake(
                self.destination.endpoint_id, pooled=self.destination.pooled, refused=refused
            )
        except ProjectMoved:
            if self.client.is_admitted_elsewhere:
                raise LetGo from None
            return await find_elsewhere(self.client, self.destination)

    async def _check_address_again(self) -> None:
        """Checks the client's address again. The rules may have changed after the client was
        admitted, and before changes of its endpoint reached it. Asks the database only if they
        have changed."""
        client, route = self.client, self.client.route
        assert route is not None
        rules = await self.client.proxy.directory.rules(route.endpoint_id, client.role)
        if rules is not None:
            check_address(client, replace(route, rules=rules), client.role)

    async def _start_session(self, address: ComputeAddress) -> Connection:
        """Starts the session, if its role may log in to the compute now.

        Raises PasswordFailed, LoginUnknown, and what `connect` raises.
        """
        client = self.client
        assert client.route is not None
        if address.elsewhere is not None:
            return await self.connect(address)  # the other host confirms the role
        confirm = self.client.proxy.directory.confirm(
            client.route, client.role, address, pooled=self.destination.pooled
        )
        if self.destination.pooled:
            # The pooler may learn of the role only by `confirm`.
            client.identity = await confirm
            return await self.connect(address)
        # Both start a session in the compute. At once, they take only as long as the slower one.
        confirming = asyncio.ensure_future(confirm)
        try:
            connection = await self.connect(address)
        except BaseException as error:
            if not isinstance(error, ComputeRefused):
                confirming.cancel()
            (confirmed,) = await asyncio.gather(confirming, return_exceptions=True)
            # The role is yet to be created in the compute.
            if isinstance(confirmed, LoginUnknown):
                raise confirmed from error
            raise
        with closed_on_failure(connection):
            client.identity = await confirming
        return connection
