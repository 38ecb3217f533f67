"""Opens the sockets that the proxy's clients connect to."""

import contextlib
import errno
import socket
from collections.abc import Sequence
from typing import Any

from controlplane.proxy.settings import ProxySettings

_BACKLOG = 1024


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
        known.pop(address) if address in known else _listen(family, address, settings)
        for family, _, _, _, address in dict.fromkeys(addresses)
    ]
    for listener in known.values():
        listener.close()
    return listeners


def _listen(family: int, address: tuple[Any, ...], settings: ProxySettings) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Accepted connections inherit these, which saves setting them on each.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(AttributeError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, settings.keepalive_idle)
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
    except BaseException:
        listener.close()
        raise
    return listener
