"""The sockets that the proxy's clients connect to."""

import socket

import pytest

from controlplane.proxy.listeners import open_listeners
from controlplane.proxy.settings import ProxySettings


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ProxySettings(
            domains=[], secret=b"secret", host_id="local", host="127.0.0.1", port=port
        )
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: .* in use"):
            open_listeners(settings)
