"""Clients of SQL over HTTP: a real one, and one that sends given bytes."""

import json
import socket
import ssl
from typing import Any
from urllib.parse import quote

import requests

from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy
from tests.support.waiting import load


def connection_string(
    *,
    role: str = "alice",
    password: str | None = None,
    host: str = f"{ENDPOINT}.localhost",
    database: str = "postgres",
    query: str = "",
) -> str:
    given = PASSWORDS.get(role, "") if password is None else password
    return f"postgresql://{quote(role)}:{quote(given, safe='')}@{host}/{database}{query}"


def headers(given: str | None = None, **modes: str) -> dict[str, str]:
    """Return the driver's headers, and further ones such as `array_mode="true"`."""
    named = {f"Neon-{name.replace('_', '-').title()}": value for name, value in modes.items()}
    return {"Neon-Connection-String": given or connection_string(), **named}


class SqlClient:
    """One connection that stays open. It asks for text and arrays, as the driver does."""

    def __init__(self, proxy: RunningProxy) -> None:
        self.url = f"http://127.0.0.1:{proxy.port}/sql"
        self.session = requests.Session()

    def post(self, body: Any, *, connection: str | None = None, **modes: str) -> requests.Response:
        asked = {"raw_text_output": "true", "array_mode": "true", **modes}
        return self.session.post(
            self.url, json=body, headers=headers(connection, **asked), timeout=30 * load()
        )

    def query(self, query: str, *params: Any, **modes: str) -> Any:
        answer = self.post({"query": query, "params": list(params)}, **modes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self, query: str, *params: Any, **modes: str) -> Any:
        return self.query(query, *params, **modes)["rows"]

    def refusal(
        self, query: str, *params: Any, status: int = 400, connection: str | None = None
    ) -> Any:
        answer = self.post({"query": query, "params": list(params)}, connection=connection)
        assert answer.status_code == status, answer.text
        return answer.json()

    def __enter__(self) -> "SqlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


class RawHttp:
    """A socket that sends bytes that no real client would."""

    def __init__(self, proxy: RunningProxy, *, alpn: list[str] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=20)
        if alpn is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if alpn:
                context.set_alpn_protocols(alpn)
            self.socket = context.wrap_socket(self.socket, server_hostname="api.localhost")
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, body: bytes, *more: str, length: int | None = None) -> None:
        self.send(request(*more, f"Content-Length: {len(body) if length is None else length}"))
        self.send(body)

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return the status, the headers by lower-case names, and the body's JSON."""
        status = int(self._file.readline().split()[1])
        named: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            named[name.lower()] = value
        body = self._file.read(int(named.get("content-length", 0)))
        return status, named, json.loads(body) if body else None

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def has_ended(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> "RawHttp":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(*more: str, first: str = "POST /sql HTTP/1.1") -> bytes:
    """Return the head of a request, with the connection string."""
    named = [f"{name}: {value}" for name, value in headers().items()]
    return "\r\n".join([first, "Host: api.localhost", *named, *more, "", ""]).encode()
