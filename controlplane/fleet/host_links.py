"""Connections from this host's worker to those of other hosts, through the other host's proxy: with
the certificates by which the proxies of a region recognize each other."""

import base64
import json
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

from django.conf import settings

from controlplane.compute.host.accounts import ENVIRONMENT
from controlplane.compute.host.reaping import reap
from controlplane.fleet.messages import LinkBroken
from controlplane.fleet.receivers import log_carrier
from controlplane.models import Host
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.wire.peer_tls import PeerTls, load_or_create_peer_certificate
from controlplane.proxy.wire.startup import PEER_REQUEST

_CONNECT_TIMEOUT = 5.0  # seconds


def connect_to_host(host: Host) -> socket.socket:
    """Return a connection to the host's worker. Raises LinkBroken."""
    try:
        tls = PeerTls(load_or_create_peer_certificate(settings.STATE_DIR / "tls"))
        tls.trust({host.id: host.peer_certificate})
        context = tls.connecting_to(host.id)
        if context is None:
            raise LinkBroken(f'the certificate of the host "{host.id}" cannot be read')
        return log_carrier.connect_until_known(partial(_connected, host, context))
    except (OSError, ValueError) as error:
        raise LinkBroken(f'the host "{host.id}" cannot be reached: {error}') from error


def carry_log(
    host: Host, receiver_id: str, listener: socket.socket, lock: int
) -> "subprocess.Popen[bytes]":
    """Start a process that carries the connection of a receiver of the log to its compute on the
    host. It accepts the connection from `listener`, and keeps `lock` open. Raises OSError."""
    own = load_or_create_peer_certificate(settings.STATE_DIR / "tls")
    header = PassedOn(kind=Kind.LOG, client_address="127.0.0.1", receiver=receiver_id)
    request = {
        "address": _name_of(host),
        "port": host.peer_port,
        "certificate": own.certificate,
        "key": own.key,
        "trusted": host.peer_certificate,
        "sent": [base64.b64encode(part).decode() for part in (PEER_REQUEST, header.encoded())],
        "accepted": base64.b64encode(ACCEPTED).decode(),
        "listener": listener.fileno(),
    }
    # Isolated: nothing but Python's own modules is imported.
    carrier = subprocess.Popen(
        [sys.executable, "-I", log_carrier.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[listener.fileno(), lock],
        start_new_session=True,
        cwd="/",
        env=ENVIRONMENT,
    )
    reap(carrier)
    assert carrier.stdin is not None
    assert carrier.stdout is not None
    with carrier.stdin as wanted, carrier.stdout as answer:
        wanted.write(json.dumps(request).encode())
        wanted.close()
        said = answer.readline().decode().strip()
    if said != "ready":
        raise OSError(said or "the process that carries the log does not start")
    return carrier


def _name_of(host: Host) -> str:
    # Not every resolver knows the names below localhost, which all stand for this machine.
    address = host.peer_address
    return "localhost" if address.endswith(".localhost") else address


def _connected(host: Host, context: ssl.SSLContext) -> socket.socket:
    with ExitStack() as opened:
        address = _name_of(host), host.peer_port
        plain = opened.enter_context(socket.create_connection(address, timeout=_CONNECT_TIMEOUT))
        plain.sendall(PEER_REQUEST)
        connection = opened.enter_context(context.wrap_socket(plain))
        header = PassedOn(kind=Kind.MOVE, client_address="127.0.0.1")
        connection.sendall(header.encoded())
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise LinkBroken(f'the host "{host.id}" does not accept the connection')
        opened.pop_all()
    return connection
