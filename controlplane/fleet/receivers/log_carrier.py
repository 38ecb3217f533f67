"""Carries the connection of a `pg_receivewal` to the proxy of the compute's host, over TLS with
both hosts' certificates.

It is a process of its own, so that it outlives the worker and shares no processor time with it.
Many may run, so it imports only Python's own modules. It gets JSON on its standard input:

    address, port               of the other host's proxy
    certificate, key, trusted   PEM: the own certificate and key, and the other host's certificate
    sent, accepted              base64: what to send first, before and after the handshake, and the
                                answer of a proxy that accepts the connection
    listener                    the descriptor that pg_receivewal connects to

It writes one line: "ready", or why it cannot connect.
"""

import base64
import json
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

_CONNECT_TIMEOUT = 4.0  # seconds; also for pg_receivewal to come
Connection = TypeVar("Connection", bound=socket.socket)
_MAX_ATTEMPTS, _RETRY_DELAY = 8, 0.2  # seconds
_CHUNK_BYTES = 256 << 10
# See `proxy.peers.connections`.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


def main() -> None:
    request = json.load(sys.stdin)
    try:
        peer = connect_until_known(lambda: _connected(request))
    except (OSError, ValueError) as error:
        print(f"the compute's host cannot be reached: {error}", flush=True)
        return
    print("ready", flush=True)
    # Whoever has started this process may end before it.
    with open(os.devnull, "r+b") as nothing:
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    with peer, socket.socket(fileno=request["listener"]) as listener:
        listener.settimeout(_CONNECT_TIMEOUT)
        local, _ = listener.accept()
        listener.close()
        with local:
            local.settimeout(None)
            _carry(local, peer)


def connect_until_known(connect: Callable[[], Connection]) -> Connection:
    """Call `connect` again if the other host does not know this one's certificate yet: each process
    of its proxy reads the certificates after a handshake that failed. Raises OSError."""
    for _ in range(_MAX_ATTEMPTS - 1):
        try:
            return connect()
        except (ssl.SSLError, ConnectionResetError):
            time.sleep(_RETRY_DELAY)
    return connect()


def _connected(request: dict[str, Any]) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=request["trusted"])
    with _in_memory(request["certificate"]) as certificate, _in_memory(request["key"]) as key:
        context.load_cert_chain(_path(certificate), _path(key))
    plain = socket.create_connection((request["address"], request["port"]), _CONNECT_TIMEOUT)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    before, after = (base64.b64decode(part) for part in request["sent"])
    plain.sendall(before)
    peer = context.wrap_socket(plain)
    peer.sendall(after)
    accepted = base64.b64decode(request["accepted"])
    if peer.recv(len(accepted)) != accepted:
        raise ValueError("it does not accept the connection")
    peer.settimeout(None)
    return peer


def _in_memory(text: str) -> Any:
    file = os.fdopen(os.memfd_create("perch"), "w")
    file.write(text)
    file.flush()
    return file


def _path(file: Any) -> str:
    return f"/proc/self/fd/{file.fileno()}"


def _carry(local: socket.socket, peer: ssl.SSLSocket) -> None:
    """Pass bytes both ways until one side ends. What goes to the compute are short answers, so a
    write never waits for a read."""
    while True:
        readable = [peer] if peer.pending() else select.select([peer, local], [], [])[0]  # noqa: TID251 - few files here
        for source in readable:
            try:
                data = source.recv(_CHUNK_BYTES)
                (local if source is peer else peer).sendall(data)
            except OSError:
                return
            if not data:
                return


if __name__ == "__main__":
    main()
