"""What the first proxy tells the second of what it passes on, and what the second answers.

The first sends `startup.PEER_REQUEST`, performs the TLS handshake, and sends one header: its length
in four bytes, then JSON. Behind the header the client's own bytes follow. The second proxy answers
ACCEPTED, and ADMITTED once a client that speaks the Postgres protocol has authenticated. Both have
the form of Postgres's messages, and come between messages for the client.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from controlplane.address_ranges import parse_address
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ProtocolViolation

# A release that could not read another one's header changes this number.
_VERSION = 1
_LENGTH_SIZE = 4
# A password of the greatest length (`authentication.scram`), and room for the rest.
_MAX_HEADER_BYTES = 32_768

ACCEPTED = messages.message(b"\x01", b"")
ADMITTED = messages.message(b"\x02", b"")


class Kind(StrEnum):
    """What follows the header."""

    # A start-up message, and from then on the Postgres protocol.
    POSTGRES = "postgres"
    # HTTP requests, one after the other.
    HTTP = "http"
    # A client's TLS connection with the second proxy, from its handshake on. Once that proxy has
    # answered ACCEPTED, the TLS between the two ends.
    TLS = "tls"
    # One cancel request.
    CANCEL = "cancel"
    # What the host's worker tells this host's: it moves a project here.
    MOVE = "move"
    # The log of a compute of this host, which the host receives (`fleet.receivers.log_receivers`).
    LOG = "log"


@dataclass(frozen=True, slots=True)
class SeenTls:
    """See `tls.ClientTlsSocket`: the client's TLS connection to the first proxy. With Kind.TLS it
    is to the second proxy, and only the name is known."""

    server_name: str | None
    channel_binding: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """A client that the first proxy has admitted while its endpoint was on that host. The role is
    the `user` of the start-up message behind the header."""

    endpoint_id: str
    pooled: bool
    # What the client's password was checked against: see `interface.Route`.
    verifier: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """A client that the first proxy passes on."""

    kind: Kind
    client_address: str
    # None if the client's connection is without TLS.
    tls: SeenTls | None = None
    # The domains below which the first proxy looks for endpoints in host names.
    domains: Sequence[str] = ()
    # Set if the client's connection is a WebSocket: the host that it wants to reach.
    websocket_host: str | None = None
    # What the client has answered when it was asked for its password in clear text; None if it was
    # not asked.
    password: bytes | None = field(default=None, repr=False)
    # Set if the client has authenticated already; it is then not asked for a password.
    admitted: Admitted | None = None
    # Of a connection for the log: the id of its receiver.
    receiver: str = ""
    # The id that the first proxy's log has for the client's connection.
    request_id: str = ""
    # The host that has passed it on, by its certificate; not sent.
    from_host: str = ""

    def encoded(self) -> bytes:
        """Returns the header as it is sent."""
        tls, password = self.tls, self.password
        content = {
            "version": _VERSION,
            "kind": self.kind,
            "client": self.client_address,
            "tls": tls and {"server_name": tls.server_name, "binding": tls.channel_binding.hex()},
            "domains": list(self.domains),
            "websocket_host": self.websocket_host,
            "password": None if password is None else base64.b64encode(password).decode(),
            "admitted": self.admitted and asdict(self.admitted),
            "request": self.request_id,
            "receiver": self.receiver,
        }
        encoded = json.dumps(content).encode()
        return len(encoded).to_bytes(_LENGTH_SIZE, "big") + encoded


async def read_header(channel: Channel) -> PassedOn:
    """Reads the header and nothing behind it. Raises ProtocolViolation, ConnectionLost."""
    size = int.from_bytes(await channel.read(_LENGTH_SIZE), "big")
    if size > _MAX_HEADER_BYTES:
        raise ProtocolViolation("the header of another host is too long")
    try:
        content = json.loads(await channel.read(size))
        if content["version"] != _VERSION:
            raise ProtocolViolation("another host's version of Perch passes clients on differently")
        return _decoded(content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolViolation("the header of another host cannot be read") from error


def _decoded(content: dict[str, Any]) -> PassedOn:
    tls, host, password = content["tls"], content["websocket_host"], content["password"]
    # Earlier releases do not send it.
    admitted = content.get("admitted")
    return PassedOn(
        kind=Kind(content["kind"]),
        client_address=str(parse_address(content["client"])),
        tls=SeenTls(_text(tls["server_name"]), bytes.fromhex(tls["binding"])) if tls else None,
        domains=[str(domain) for domain in content["domains"]],
        websocket_host=_text(host),
        password=None if password is None else base64.b64decode(password, validate=True),
        admitted=Admitted(
            str(admitted["endpoint_id"]), bool(admitted["pooled"]), str(admitted["verifier"])
        )
        if admitted
        else None,
        request_id=str(content["request"]),
        # An earlier release does not send it.
        receiver=str(content.get("receiver", "")),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
