"""What the proxy shows of itself in TLS: the operator's certificate, or ones of our own authority
(`issuing`)."""

import hashlib
import logging
import ssl
import time
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import serialization

log = logging.getLogger(__name__)

ALPN_POSTGRES = "postgresql"
ALPN_HTTP = "http/1.1"

_WEAK_HASHES = {"md5", "sha1"}
# Seconds between two looks at whether the operator's files have been replaced.
_LOOK_EVERY = 10.0


class TlsIdentity(Protocol):
    @property
    def context(self) -> ssl.SSLContext:
        """For the next handshake; its sockets are of ClientTlsSocket, and know what was shown."""
        ...

    @property
    def authority_pem(self) -> str:
        """What clients are to trust; "" where that is not ours to say."""
        ...

    def note_proven(self, server_name: str | None) -> None:
        """A client that asked for this name (SNI) has shown a right password."""
        ...


class ClientTlsSocket(ssl.SSLSocket):
    """A client's connection, with the host name it asked for and what it was shown."""

    server_name: str | None = None
    # `tls-server-end-point` of RFC 5929, which SCRAM-SHA-256-PLUS binds to.
    channel_binding: bytes = b""


class OperatorIdentity:
    """A certificate chain and its key in PEM files, shown to everybody. Files that are replaced
    while the proxy runs hold for the next handshakes, once they can be read and fit together.

    Raises OSError or ValueError where they cannot be read or do not belong together.
    """

    # Whoever has signed it, clients know them, or know from the operator.
    authority_pem = ""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._seen = self._look()
        self._context = self._load()
        self._next_look = time.monotonic() + _LOOK_EVERY

    @property
    def context(self) -> ssl.SSLContext:
        if time.monotonic() >= self._next_look:
            self.refresh()
        return self._context

    def note_proven(self, server_name: str | None) -> None:
        pass

    def refresh(self) -> None:
        """Takes in files that are others than before."""
        self._next_look = time.monotonic() + _LOOK_EVERY
        try:
            found = self._look()
            if found == self._seen:
                return
            self._context = self._load()
        except (OSError, ValueError) as error:
            # They may be replaced one after the other: the next look may find them whole.
            log.warning("certificate not taken in", extra={"error": str(error)})
            return
        self._seen = found
        log.info("certificate taken in", extra={"file": str(self._certificate)})

    def _look(self) -> list[tuple[int, int]]:
        found = [path.stat() for path in (self._certificate, self._key)]
        return [(stat.st_ino, stat.st_mtime_ns) for stat in found]

    def _load(self) -> ssl.SSLContext:
        context = server_context(str(self._certificate), str(self._key))
        leaf = x509.load_pem_x509_certificates(self._certificate.read_bytes())[0]
        binding = end_point_hash(leaf)

        def remember(
            socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
        ) -> None:
            if isinstance(socket, ClientTlsSocket):
                socket.server_name, socket.channel_binding = name, binding

        context.sni_callback = remember
        return context


def server_context(certificate: str, key: str | None = None) -> ssl.SSLContext:
    """For the chain and the key in these PEM files, or both in one. Raises OSError or ValueError
    where they cannot be read or do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN_POSTGRES, ALPN_HTTP])
    # No client resumes a session, and tickets would cost each connection two messages.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.sslsocket_class = ClientTlsSocket
    return context


def end_point_hash(certificate: x509.Certificate) -> bytes:
    """What `tls-server-end-point` (RFC 5929) makes of it."""
    algorithm = certificate.signature_hash_algorithm
    name = "sha256" if algorithm is None or algorithm.name in _WEAK_HASHES else algorithm.name
    return hashlib.new(name, certificate.public_bytes(serialization.Encoding.DER)).digest()
