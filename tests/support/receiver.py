"""Receivers of webhooks: HTTP servers in threads of the test, which answer as the test chooses."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Message:
    """A request that the receiver got. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def event(self) -> Any:
        return self.json["data"]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b"taken"
    location: str = ""


class Handler(BaseHTTPRequestHandler):
    server: "Receiver"

    def __getattr__(self, name: str) -> Any:
        # The server looks for do_POST, do_GET and so on.
        return self.receive if name.startswith("do_") else super().__getattribute__(name)

    def receive(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        message = Message(self.command, self.path, headers, self.rfile.read(length))
        self.server.messages.append(message)
        answer = self.server.answers(message)
        if answer is None:
            self.server.hold(self.connection)
            return
        self.send_response(answer.status)
        if answer.location:
            self.send_header("Location", answer.location)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *args: Any) -> None:
        """Log nothing: the tests check what was received."""


class Receiver(ThreadingHTTPServer):
    """Answers each message with what `answers` returns, by default with success. For None it keeps
    the connection open: `holds` then uses it; by default it waits until the receiver closes.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__((host, 0), Handler)
        self.messages: list[Message] = []
        self.answers: Callable[[Message], Answer | None] = lambda message: Answer()
        self.holds: Callable[[socket.socket], None] = lambda connection: None
        self.closing = threading.Event()
        self.url = f"http://{host}:{self.server_port}/hook"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def hold(self, connection: socket.socket) -> None:
        self.holds(connection)
        self.closing.wait(60)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: tests break connections on purpose."""

    @property
    def events(self) -> list[Any]:
        return [message.event for message in list(self.messages)]

    @property
    def summaries(self) -> list[str]:
        return [event["summary"] for event in self.events]

    def await_messages(self, count: int, *, timeout: float = 30.0) -> list[Message]:
        what = f"{count} messages at {self.url}"
        wait_for(lambda: len(self.messages) >= count, what, timeout=timeout)
        return list(self.messages)


@contextmanager
def receiving(host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(host, tls=tls)
    thread = threading.Thread(target=receiver.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.closing.set()
        receiver.shutdown()
        receiver.server_close()
        thread.join(10)
