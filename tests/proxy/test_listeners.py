"""The sockets that the proxy's clients connect to, and how long clients wait there."""

import socket
import time

import pytest

from controlplane.proxy.listeners import open_listeners
from controlplane.proxy.sessions.wakes import waited_for_accept
from controlplane.proxy.settings import ProxySettings
from tests.support.waiting import wait_for

WAIT = 0.3


@pytest.mark.parametrize("sends", [b"", b"12345678"], ids=["silent", "sends"])
def test_a_client_that_waits_to_be_accepted_is_measured(sends: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        client.sendall(sends)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > WAIT, "the time to pass")
        connection, _ = listener.accept()
        waited = time.monotonic() - began
        with connection:
            assert WAIT - 0.05 < waited_for_accept(connection) < waited + 0.05


def test_a_connection_that_is_gone_has_not_waited() -> None:
    gone, other = socket.socketpair()
    with gone, other:
        assert waited_for_accept(gone) == 0


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ProxySettings(
            domains=[], secret=b"secret", host_id="local", host="127.0.0.1", port=port
        )
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: .* in use"):
            open_listeners(settings)
