"""Asks a client for its password over its channel, by SCRAM or in clear text. A session does this
before it touches anything of the endpoint.

This is the server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677), as in
Postgres. It uses a stored verifier: an exchange costs two HMACs, and the server never sees the
password. An unknown role goes through the same steps, with a salt that stays the same for its name.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache

from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import PasswordFailed, ProtocolViolation

MECHANISM = "SCRAM-SHA-256"
MECHANISM_PLUS = "SCRAM-SHA-256-PLUS"

_CHANNEL_BINDING = "tls-server-end-point"
_MOCK_ITERATIONS = 4096
_SALT_SIZE = 16
_KEY_SIZE = 32
# Postgres's own limits for the messages of a client that has not authenticated, in bytes.
_MAX_SASL_BYTES = 1024 + 64
_MAX_PASSWORD_BYTES = 8192
_PASSWORD_MESSAGE = b"p"
_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>[1-9]\d{0,8}):(?P<salt>[^$]{1,258})\$(?P<stored>[^:]+):(?P<server>.+)"
)
# The `gs2` header and the bare message. An authorization identity is refused, as in Postgres.
_CLIENT_FIRST = re.compile(
    r"(?P<gs2>(?P<flag>n|y|p=[A-Za-z0-9.-]+),,)(?P<bare>n=[^,]*,r=(?P<nonce>[!-+\--~]+)(?:,.*)?)",
    re.DOTALL,
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(?:,[^,]+)*?),p=(?P<proof>[^,]+)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Verifier:
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    # No password fits a mock.
    is_mock: bool = False


# Cached, because each login parses its role's verifier.
@lru_cache(maxsize=1024)
def parse_verifier(text: str) -> Verifier | None:
    """Parses a verifier as in `pg_authid.rolpassword`. Returns None for any other text."""
    match = _VERIFIER.fullmatch(text)
    if match is None:
        return None
    try:
        salt, stored, server = (
            base64.b64decode(match[part], validate=True) for part in ("salt", "stored", "server")
        )
    except binascii.Error:
        return None
    if len(stored) != _KEY_SIZE or len(server) != _KEY_SIZE:
        return None
    return Verifier(int(match["iterations"]), salt, stored, server)


def mock_verifier(name: str, secret: bytes) -> Verifier:
    """Returns a verifier for an unknown `name`, which no password fits. The same name and secret
    give the same salt, so asking twice reveals nothing."""
    salt = hmac.digest(secret, name.encode(errors="surrogateescape"), "sha256")[:_SALT_SIZE]
    keys = secrets.token_bytes(_KEY_SIZE)
    return Verifier(_MOCK_ITERATIONS, salt, keys, keys, is_mock=True)


class ScramServer:
    """One exchange: `first` answers the client's first message, `final` its second.

    `channel_binding` is the hash of the certificate that the client was shown, None without TLS.
    """

    def __init__(
        self, verifier: Verifier, *, mechanism: str, channel_binding: bytes | None
    ) -> None:
        self._verifier = verifier
        self._mechanism = mechanism
        self._channel_binding = channel_binding
        self._nonce = ""
        self._expected_binding = b""
        self._transcript = ""

    def first(self, client_first: bytes) -> bytes:
        """Returns the server's first message. Raises ProtocolViolation."""
        match = _CLIENT_FIRST.fullmatch(_text(client_first))
        if match is None:
            raise ProtocolViolation("malformed SCRAM message")
        self._check_binding_flag(match["flag"])
        self._expected_binding = match["gs2"].encode()
        if self._mechanism == MECHANISM_PLUS:
            self._expected_binding += self._channel_binding or b""
        self._nonce = match["nonce"] + base64.b64encode(secrets.token_bytes(18)).decode()
        salt = base64.b64encode(self._verifier.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._transcript = f"{match['bare']},{server_first}"
        return server_first.encode()

    def final(self, client_final: bytes) -> bytes | None:
        """Returns the server's final message with its proof, or None if the password is wrong.
        Raises ProtocolViolation."""
        match = _CLIENT_FINAL.fullmatch(_text(client_final))
        if match is None:
            raise ProtocolViolation("malformed SCRAM message")
        if match["nonce"] != self._nonce:
            raise ProtocolViolation("invalid SCRAM response: nonce does not match")
        if _decode(match["binding"]) != self._expected_binding:
            raise ProtocolViolation("SCRAM channel binding check failed")
        proof = _decode(match["proof"])
        if len(proof) != _KEY_SIZE:
            raise ProtocolViolation("malformed SCRAM message: malformed proof")

        transcript = f"{self._transcript},{match['unproved']}".encode()
        signature = hmac.digest(self._verifier.stored_key, transcript, "sha256")
        client_key = _xor(proof, signature)
        stored_key = hashlib.sha256(client_key).digest()
        fits = hmac.compare_digest(stored_key, self._verifier.stored_key)
        if not fits or self._verifier.is_mock:
            return None
        server_signature = hmac.digest(self._verifier.server_key, transcript, "sha256")
        return b"v=" + base64.b64encode(server_signature)

    def _check_binding_flag(self, flag: str) -> None:
        if self._mechanism == MECHANISM_PLUS:
            if not flag.startswith("p="):
                raise ProtocolViolation(
                    "malformed SCRAM message: "
                    "the client selected SCRAM-SHA-256-PLUS but sent no channel binding data"
                )
            if flag != f"p={_CHANNEL_BINDING}":
                raise ProtocolViolation(f'unsupported SCRAM channel-binding type "{flag[2:]}"')
        elif flag.startswith("p="):
            raise ProtocolViolation(
                "malformed SCRAM message: "
                "the client selected SCRAM-SHA-256 but sent channel binding data"
            )
        elif flag == "y" and self._channel_binding is not None:
            # The client was not offered -PLUS although the proxy did offer it, so somebody between
            # them removed it.
            raise ProtocolViolation("SCRAM channel binding negotiation error")


def _xor(one: bytes, other: bytes) -> bytes:
    """Returns the bitwise XOR of two byte strings of the same size."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolViolation("malformed SCRAM message") from None


def _decode(base64_text: str) -> bytes:
    try:
        return base64.b64decode(base64_text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolViolation("malformed SCRAM message") from None


async def authenticate(
    channel: Channel,
    verifier: Verifier,
    *,
    role: str,
    channel_binding: bytes | None,
    preamble: bytes = b"",
) -> bytes:
    """Runs the SCRAM exchange; `preamble` is sent with its first message.

    Returns the AuthenticationSASLFinal, still to be sent together with what the compute sends next.
    Raises PasswordFailed, ProtocolViolation or ConnectionLost.
    """
    offered = [MECHANISM]
    if channel_binding is not None:
        offered.insert(0, MECHANISM_PLUS)
    names = b"".join(name.encode() + b"\0" for name in offered)
    await channel.write(preamble + messages.authentication(messages.SASL, names + b"\0"))
    try:
        mechanism, client_first = messages.sasl_initial_response(await _read_password(channel))
        if mechanism not in offered:
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        server = ScramServer(verifier, mechanism=mechanism, channel_binding=channel_binding)
        if not client_first:
            # The protocol allows this. The client then answers an empty challenge.
            await channel.write(messages.authentication(messages.SASL_CONTINUE, b""))
            client_first = await _read_password(channel)
        server_first = server.first(client_first)
        await channel.write(messages.authentication(messages.SASL_CONTINUE, server_first))
        server_final = server.final(await _read_password(channel))
    except messages.MalformedMessage as error:
        raise ProtocolViolation(str(error)) from error
    if server_final is None:
        raise PasswordFailed(role)
    return messages.authentication(messages.SASL_FINAL, server_final)


async def ask_for_password(channel: Channel, *, preamble: bytes = b"") -> bytes:
    """Asks for the password in clear text and returns it; `preamble` is sent with the question.

    Raises ProtocolViolation or ConnectionLost.
    """
    await channel.write(preamble + messages.authentication(messages.CLEARTEXT_PASSWORD))
    password, end, rest = (await _read_password(channel, most=_MAX_PASSWORD_BYTES)).partition(b"\0")
    if not end or rest:
        raise ProtocolViolation("invalid password packet size")
    return password


async def _read_password(channel: Channel, *, most: int = _MAX_SASL_BYTES) -> bytes:
    header = await channel.read(messages.HEADER_SIZE)
    kind, size = header[:1], int.from_bytes(header[1:], "big") - 4
    if kind != _PASSWORD_MESSAGE:
        raise ProtocolViolation(f"expected password response, got message type {kind[0]}")
    if not 0 <= size <= most:
        raise ProtocolViolation("invalid message length")
    return await channel.read(size)
