"""The certificates by which the hosts of a region recognize each other."""

import socket
import ssl
import threading
from datetime import UTC, datetime

import pytest

from controlplane.proxy.wire.peer_tls import PeerTls, new_peer_certificate

HOSTS = ("first", "second", "third")


@pytest.fixture
def hosts() -> dict[str, PeerTls]:
    """Hosts that trust each other."""
    certificates = {name: new_peer_certificate(datetime.now(UTC)) for name in HOSTS}
    made = {name: PeerTls(own) for name, own in certificates.items()}
    for name, tls in made.items():
        tls.trust({one: own.certificate for one, own in certificates.items() if one != name})
    return made


def recognized(client: PeerTls, server: PeerTls, server_name: str) -> str | None:
    """Connect the client to the server. Returns who it is for the server."""
    ours, theirs = socket.socketpair()
    found: list[str | None] = []

    def accept() -> None:
        with server.accepting.wrap_socket(theirs, server_side=True) as accepted:
            found.append(server.host_of(accepted))
            accepted.sendall(b"!")

    context = client.connecting_to(server_name)
    assert context is not None
    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with context.wrap_socket(ours) as connection:
            assert connection.recv(1) == b"!"
    finally:
        thread.join()
    return found[0]


@pytest.mark.parametrize("client", HOSTS)
@pytest.mark.parametrize("server", HOSTS)
def test_each_host_recognizes_every_other(
    hosts: dict[str, PeerTls], client: str, server: str
) -> None:
    if client != server:
        assert recognized(hosts[client], hosts[server], server) == client


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_certificate_that_no_host_has_published_is_refused(hosts: dict[str, PeerTls]) -> None:
    stranger = PeerTls(new_peer_certificate(datetime.now(UTC)))
    stranger.trust({"first": hosts["first"]._own.certificate})
    with pytest.raises((ssl.SSLError, ConnectionError)):
        recognized(stranger, hosts["first"], "first")
