"""A client that sends given protocol messages, including invalid ones, and returns every byte of
the answers."""

import base64
import socket
import ssl
import struct
from dataclasses import dataclass, field

from scramp import ScramClient

from controlplane.proxy.wire import messages


@dataclass
class Answer:
    """The answer to a login that failed."""

    kinds: list[bytes] = field(default_factory=list)
    sasl: list[bytes] = field(default_factory=list)
    error: bytes = b""

    @property
    def sqlstate(self) -> str:
        return messages.error_sqlstate(self.error)

    @property
    def salt(self) -> bytes:
        return base64.b64decode(self._attribute(b"s="))

    @property
    def iterations(self) -> int:
        return int(self._attribute(b"i="))

    def _attribute(self, name: bytes) -> bytes:
        (value,) = [part[2:] for part in self.sasl[1].split(b",") if part.startswith(name)]
        return value


def trusting_context() -> ssl.SSLContext:
    """Return a client's context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class RawClient:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._answer = Answer()

    @classmethod
    def start_log_in(
        cls, port: int, endpoint_id: str, *, user: str, password: str, beginning: bytes = b""
    ) -> "RawClient":
        """Log in without TLS, up to the point at which the password has been sent. `beginning` is
        sent before everything else."""
        client = cls(port)
        client.socket.sendall(beginning)
        client.send_startup(user=user, database="postgres", options=f"endpoint={endpoint_id}")
        scram = ScramClient(["SCRAM-SHA-256"], user, password)
        client.read_into_answer()
        first = scram.get_client_first().encode()
        client.send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first)
        scram.set_server_first(client.read_into_answer()[4:].decode())
        client.send(b"p", scram.get_client_final().encode())
        return client

    @classmethod
    def log_in(cls, port: int, endpoint_id: str, *, user: str, password: str) -> Answer:
        return cls.start_log_in(port, endpoint_id, user=user, password=password).finish()

    def finish(self) -> Answer:
        """Read on to the error."""
        self.read_into_answer()
        self.socket.close()
        return self._answer

    def send_startup(self, **parameters: str) -> None:
        encoded = {name.encode(): value.encode() for name, value in parameters.items()}
        self.socket.sendall(messages.startup_message(encoded))

    def send(self, kind: bytes, payload: bytes) -> None:
        self.socket.sendall(messages.message(kind, payload))

    def request_tls(self) -> None:
        self.socket.sendall(struct.pack("!II", 8, 80877103))
        assert self.socket.recv(1) == b"S"

    def start_tls(self, server_name: str | None = None) -> None:
        self.request_tls()
        self.socket = trusting_context().wrap_socket(self.socket, server_hostname=server_name)

    def read_message(self) -> tuple[bytes, bytes]:
        kind, length = struct.unpack("!cI", self.read(messages.HEADER_SIZE))
        return kind, self.read(length - 4)

    def read_into_answer(self) -> bytes:
        kind, payload = self.read_message()
        self._answer.kinds.append(kind)
        if kind == b"E":
            self._answer.error = payload
        else:
            self._answer.sasl.append(payload)
        return payload

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk, f"the connection ended after {data!r}"
            data += chunk
        return data

    def read_to_end(self) -> bytes:
        """Read everything up to the end of the connection, however it ends."""
        data = b""
        try:
            while chunk := self.socket.recv(65536):
                data += chunk
        except ConnectionError:
            pass
        self.socket.close()
        return data
