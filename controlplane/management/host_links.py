"""Connections from this host's worker to those of other hosts, through the other host's proxy: with
the certificates by which the proxies of a region recognize each other."""

import socket
import ssl

from django.conf import settings

from controlplane.compute.moving.links import LinkBroken
from controlplane.models import Host
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.wire.peer_tls import PeerTls, load_or_create_peer_certificate
from controlplane.proxy.wire.startup import PEER_REQUEST

_CONNECT_WITHIN = 5.0  # seconds


def connect_to_host(host: Host) -> socket.socket:
    """Return a connection to the host's worker. Raises LinkBroken."""
    try:
        tls = PeerTls(load_or_create_peer_certificate(settings.STATE_DIR / "tls"))
        tls.trust({host.id: host.peer_certificate})
        context = tls.connecting_to(host.id)
        if context is None:
            raise LinkBroken(f'the certificate of the host "{host.id}" cannot be read')
        return _connected(host, context)
    except (OSError, ValueError) as error:
        raise LinkBroken(f'the host "{host.id}" cannot be reached: {error}') from error


def _connected(host: Host, context: ssl.SSLContext) -> socket.socket:
    address = host.peer_address
    # Not every resolver knows the names below localhost, which all stand for this machine.
    name = "localhost" if address.endswith(".localhost") else address
    plain = socket.create_connection((name, host.peer_port), timeout=_CONNECT_WITHIN)
    try:
        plain.sendall(PEER_REQUEST)
        connection = context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise
    try:
        header = PassedOn(kind=Kind.MOVE, client_address="127.0.0.1")
        connection.sendall(header.encoded())
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise LinkBroken(f'the host "{host.id}" does not accept the connection')
    except BaseException:
        connection.close()
        raise
    return connection
