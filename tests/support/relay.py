"""A server of this API between a console and the real one. It behaves as other servers and networks
may: lacks calls, is unreachable, is slow, or refuses. A test can change this while a page is open.
"""

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.support.stack import free_port

API = "/api/v2"
# Headers that belong to one hop only.
NOT_PASSED_ON = {"transfer-encoding", "connection", "content-encoding", "content-length"}


@dataclass
class Relay:
    # Both addresses include /api/v2.
    api_url: str
    url: str = ""
    # Parts of paths that this server does not have, such as "/events".
    missing: set[str] = field(default_factory=set)
    # If it is not 0, the status of every answer.
    refuses: int = 0
    # Whether connections are closed without an answer.
    is_away: bool = False
    # Seconds before each answer.
    delay: float = 0.0
    # The body of every answer instead of the real one, with its status and content type.
    says: bytes | None = None
    status: int = 200
    kind: str = "application/json"
    # Changes the bodies of the real answers.
    twists: Callable[[bytes], bytes] | None = None
    # Whether the connection is closed in the middle of each answer.
    breaks_off: bool = False
    # The requests, each as "GET /projects".
    asked: list[str] = field(default_factory=list)

    def be_well(self) -> None:
        self.missing.clear()
        self.refuses, self.is_away, self.delay = 0, False, 0.0
        self.says, self.status, self.kind = None, 200, "application/json"
        self.twists, self.breaks_off = None, False

    def asked_for(self, words: str) -> int:
        """Return how many requests contained these words."""
        return sum(words in one for one in self.asked)


@contextlib.contextmanager
def relay(api_url: str) -> Iterator[Relay]:
    state = Relay(api_url)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            # The server looks for do_GET, do_POST and so on.
            return self.answer if name.startswith("do_") else super().__getattribute__(name)

        def answer(self) -> None:
            path = self.path.removeprefix(API)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.asked.append(f"{self.command} {path}")
            time.sleep(state.delay)
            with contextlib.suppress(OSError):
                if state.is_away:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif state.refuses:
                    self.refuse(state.refuses)
                elif state.says is not None:
                    self.send(state.status, state.says, {"Content-Type": state.kind})
                elif any(part in path for part in state.missing):
                    self.refuse(404)
                else:
                    self.pass_on(path, body)

        def refuse(self, status: int) -> None:
            self.send(status, json.dumps({"code": "", "message": "refused by the test"}).encode())

        def pass_on(self, path: str, body: bytes) -> None:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            with requests.request(
                self.command,
                # Addresses outside the API are served too.
                (state.api_url if path != self.path else state.api_url.removesuffix(API)) + path,
                headers=headers,
                data=body,
                timeout=60,
                allow_redirects=False,
            ) as answer:
                body = state.twists(answer.content) if state.twists else answer.content
                self.send(answer.status_code, body, dict(answer.headers))

        def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                if name.lower() not in NOT_PASSED_ON | {"date", "server"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.breaks_off:
                self.wfile.write(body[: len(body) // 2])
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            else:
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}{API}"
    yield state
    state.is_away = True
    server.shutdown()
    thread.join()
    server.server_close()
