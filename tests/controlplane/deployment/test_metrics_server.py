"""The page of figures is served whatever other users of the host send."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.management.commands import metrics
from tests.support.waiting import wait_for


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[metrics.Server]:
    settings.METRICS_LISTEN = "127.0.0.1:0"
    monkeypatch.setattr(metrics, "MAX_CLIENTS", 3)
    with metrics.listening_server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        server.set_app(page)
        yield server
        server.shutdown()
        thread.join()


def page(_: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"figures"]


def answer(server: metrics.Server) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=20) as answered:
        found: bytes = answered.read()
    return found


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def connected(server: metrics.Server, sends: bytes = b"G") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.server_port))
    client.send(sends)
    return client


def test_the_oldest_of_many_clients_are_ended(server: metrics.Server) -> None:
    clients = [connected(server) for _ in range(20)]
    wait_for(lambda: sum(map(is_closed, clients)) == 17, "room")
    assert not any(map(is_closed, clients[-3:]))
    assert answer(server) == b"figures"
    wait_for(lambda: len(server._clients) <= 3, "the threads to end")
    for client in clients:
        client.close()


def test_a_client_has_a_time_for_all_of_its_request(
    server: metrics.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_SECONDS", 0.3)
    with connected(server) as client:

        def send() -> bool:
            if is_closed(client):
                return True
            client.send(b"E")
            return False

        wait_for(send, "the end of a slow request", timeout=5)
    wait_for(lambda: not server._clients, "the thread to end")


def test_answers_that_hang_take_a_bounded_number_of_threads(
    server: metrics.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_THREADS", 5)
    goes_on = threading.Event()

    def hanging(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        goes_on.wait(30)
        return page(environ, start_response)

    server.set_app(hanging)
    clients = [connected(server, b"GET / HTTP/1.0\r\n\r\n") for _ in range(20)]
    wait_for(lambda: sum(map(is_closed, clients)) >= 17, "refusals")
    assert len(server._clients) <= 5
    goes_on.set()
    wait_for(lambda: not server._clients, "the threads to end")
    assert answer(server) == b"figures"
    for client in clients:
        client.close()
