"""Calls to a server by plain HTTP keep their connections, as other calls do."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
import requests

from console.api.bounded_http import MOST_KEPT, PlainAdapter, is_plain, read_whole
from tests.support.waiting import wait_for


@dataclass
class Server:
    url: str = ""
    # The client's port of each request, and whether its connection is closed without a word.
    ports: list[int] = field(default_factory=list)
    closes: bool = False
    closed: int = 0
    # Requests wait until this is set.
    may_answer: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    found.may_answer.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.ports.append(self.client_address[1])
            # Set before the client has its answer, and may change what the next one does.
            self.close_connection = found.closes
            found.may_answer.wait(30)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def finish(self) -> None:
            super().finish()
            found.closed += 1

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, args=[0.01]).start()
        found.url = f"http://127.0.0.1:{serving.server_port}/api/v2/projects"
        yield found
        found.may_answer.set()
        serving.shutdown()


def ask(adapter: PlainAdapter, url: str) -> bytes:
    request = requests.Request("GET", url).prepare()
    with adapter.send(request, timeout=(5, 5)) as answer:
        return read_whole(answer)


def test_a_connection_is_used_until_the_server_closes_it(server: Server) -> None:
    with closing(PlainAdapter()) as adapter:
        ask(adapter, server.url)
        server.closes = True
        ask(adapter, server.url)
        wait_for(lambda: server.closed == 1, "the server has closed the connection")
        assert ask(adapter, server.url) == b"{}"
    first, second, third = server.ports
    assert first == second != third


def test_only_some_connections_are_kept(server: Server) -> None:
    most = MOST_KEPT + 3
    server.may_answer.clear()
    with closing(PlainAdapter()) as adapter:
        asking = [threading.Thread(target=ask, args=[adapter, server.url]) for _ in range(most)]
        for one in asking:
            one.start()
        wait_for(lambda: len(server.ports) == most, "all have sent their requests")
        server.may_answer.set()
        for one in asking:
            one.join()
        wait_for(lambda: server.closed == 3, "the others are closed")


def test_a_proxy_or_tls_needs_another_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_plain("http://api.example/api/v2")
    assert not is_plain("https://api.example/api/v2")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert not is_plain("http://behind.example/api/v2")
    assert is_plain("http://127.0.0.1:8001/api/v2")
