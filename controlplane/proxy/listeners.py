"""The sockets that the proxy's clients connect to: opens them, and passes them and the shared
counts to the proxy that is started in this one's place, so that clients can always connect.

The previous proxy offers them at a socket in the directory of the proxies' own sockets, which only
this account may enter. The next one connects to it as it starts, receives the descriptors, and
writes once when its processes accept clients. From then on the previous one accepts none.
"""

import contextlib
import errno
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from controlplane.proxy.limits.connection_limits import SharedCounts
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.channel import closed_on_failure

_BACKLOG = 1024
# Seconds for which a client may be silent before the kernel checks that it still exists.
_KEEPALIVE_IDLE = 60

# Of what is passed: the number changes whenever a release could not use an earlier one's.
FORMAT = 1
_HANDOVER_SOCKET = "handover.sock"
_MAX_DESCRIPTORS = 64
_MAX_MESSAGE_BYTES = 4096
# Seconds in which the previous proxy must pass its descriptors.
_ANSWER_TIMEOUT = 10.0
_READY = b"ready"


def open_listeners(
    settings: ProxySettings, inherited: Sequence[socket.socket] = ()
) -> list[socket.socket]:
    """Opens listeners on every address of the settings' host, at each of the proxy's ports, or uses
    those of the `inherited` ones that have such an address, and closes the others. Raises OSError
    if an address is in use."""
    known: dict[Any, socket.socket] = {one.getsockname(): one for one in inherited}
    ports = [settings.port, *([settings.http_port] if settings.http_port else [])]
    addresses = [
        address
        for port in dict.fromkeys(ports)
        for address in socket.getaddrinfo(
            settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    ]
    listeners = [
        known.pop(address) if address in known else _listen(family, address)
        for family, _, _, _, address in dict.fromkeys(addresses)
    ]
    for listener in known.values():
        listener.close()
    return listeners


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    with closed_on_failure(listener):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Accepted connections inherit these, which saves setting them on each.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(AttributeError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
        try:
            listener.bind(address)
        except OSError as error:
            words = f"cannot listen on {address[0]}, port {address[1]}: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                words += (
                    f" (`ss -ltnp sport = :{address[1]}` names the process; PERCH_PROXY_PORT "
                    "chooses another port)"
                )
            raise OSError(error.errno, words) from error
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    return listener


class Handover:
    """What this proxy has taken over, and passes on. `linger_within` is how many seconds it serves
    after a SIGTERM, until another proxy is started; 0 if it must not."""

    counts: SharedCounts

    def __init__(self, directory: Path, *, linger_within: float) -> None:
        self._path = directory / _HANDOVER_SOCKET
        self.linger_within = linger_within
        self.listeners: Sequence[socket.socket] = ()
        self._predecessor: socket.socket | None = None

    def take_over(self) -> Self:
        """Takes over from the previous proxy if one offers that; otherwise begins without
        listeners. Raises OSError if the previous proxy does not answer."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(_ANSWER_TIMEOUT)
            connection.connect(str(self._path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            self.counts = SharedCounts()
            return self
        message, descriptors, _, _ = socket.recv_fds(
            connection, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        passed = json.loads(message or b"{}")
        if passed.get("format") != FORMAT:
            raise OSError("the previous proxy passes on its sockets in another way: stop it first")
        self.counts = SharedCounts(descriptors.pop())
        self.listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for listener in self.listeners:
            listener.setblocking(False)
        self._predecessor = connection
        return self

    def tell_predecessor(self) -> None:
        """Tells the previous proxy, if there is one, that clients are accepted here."""
        if self._predecessor is not None:
            with contextlib.suppress(OSError):
                self._predecessor.send(_READY)
            self._predecessor.close()
            self._predecessor = None

    def offer(self) -> socket.socket:
        """Returns the socket to which the next proxy will connect. Raises OSError."""
        self.withdraw()
        offer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        offer.bind(str(self._path))
        offer.listen()
        return offer

    def withdraw(self) -> None:
        self._path.unlink(missing_ok=True)

    def pass_on(self, offer: socket.socket) -> socket.socket:
        """Accepts the next proxy's connection, closes the offer, and passes the descriptors.
        Returns the connection, for `is_ready`. Raises OSError."""
        successor, _ = offer.accept()
        # At once, because the next proxy makes an offer at the same place when it is stopped.
        self.withdraw()
        offer.close()
        message = json.dumps({"format": FORMAT}).encode()
        descriptors = [listener.fileno() for listener in self.listeners]
        socket.send_fds(successor, [message], [*descriptors, self.counts.descriptor])
        return successor

    def close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()


def is_ready(successor: socket.socket) -> bool:
    """True if the next proxy has written that it accepts clients; False if it has ended before."""
    try:
        return successor.recv(len(_READY)) == _READY
    except OSError:
        return False


def is_offered(directory: Path) -> bool:
    """True if a previous proxy there waits for the next one, which gets its listeners."""
    return (directory / _HANDOVER_SOCKET).exists()
