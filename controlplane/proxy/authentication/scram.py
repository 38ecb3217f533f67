"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677), as in Postgres.
It uses a stored verifier: an exchange costs two HMACs, and the server never sees the password.

An unknown role goes through the same steps, with a salt that stays the same for its name.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache

MECHANISM = "SCRAM-SHA-256"
MECHANISM_PLUS = "SCRAM-SHA-256-PLUS"

_CHANNEL_BINDING = "tls-server-end-point"
_MOCK_ITERATIONS = 4096
_SALT_SIZE = 16
_KEY_SIZE = 32
_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>\d{1,9}):(?P<salt>[^$]{1,258})\$(?P<stored>[^:]+):(?P<server>.+)"
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


class ScramMalformed(Exception):
    """A message that does not follow the exchange's form. Its text is Postgres's."""


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
        """Returns the server's first message. Raises ScramMalformed."""
        match = _CLIENT_FIRST.fullmatch(_text(client_first))
        if match is None:
            raise ScramMalformed("malformed SCRAM message")
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
        Raises ScramMalformed."""
        match = _CLIENT_FINAL.fullmatch(_text(client_final))
        if match is None:
            raise ScramMalformed("malformed SCRAM message")
        if match["nonce"] != self._nonce:
            raise ScramMalformed("invalid SCRAM response: nonce does not match")
        if _decode(match["binding"]) != self._expected_binding:
            raise ScramMalformed("SCRAM channel binding check failed")
        proof = _decode(match["proof"])
        if len(proof) != _KEY_SIZE:
            raise ScramMalformed("malformed SCRAM message: malformed proof")

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
                raise ScramMalformed(
                    "malformed SCRAM message: "
                    "the client selected SCRAM-SHA-256-PLUS but sent no channel binding data"
                )
            if flag != f"p={_CHANNEL_BINDING}":
                raise ScramMalformed(f'unsupported SCRAM channel-binding type "{flag[2:]}"')
        elif flag.startswith("p="):
            raise ScramMalformed(
                "malformed SCRAM message: "
                "the client selected SCRAM-SHA-256 but sent channel binding data"
            )
        elif flag == "y" and self._channel_binding is not None:
            # The client was not offered -PLUS although the proxy did offer it, so somebody between
            # them removed it.
            raise ScramMalformed("SCRAM channel binding negotiation error")


def _xor(one: bytes, other: bytes) -> bytes:
    """Returns the bitwise XOR of two byte strings of the same size."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramMalformed("malformed SCRAM message") from None


def _decode(base64_text: str) -> bytes:
    try:
        return base64.b64decode(base64_text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramMalformed("malformed SCRAM message") from None
