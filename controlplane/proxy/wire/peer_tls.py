"""Mutual TLS between the proxies of a region's hosts. Each host has a key and a self-signed
certificate of its own for this, and publishes the certificate. Each side accepts exactly the
certificates that hosts have published: no authority is trusted, and no name is checked.
"""

import logging
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from controlplane import durable
from controlplane.proxy.wire.certificates import builder, name_of, private_pem
from controlplane.proxy.wire.tls import ClientTlsSocket, in_memory

log = logging.getLogger(__name__)

# SSL_OP_IGNORE_UNEXPECTED_EOF, which Python names from 3.12 on. Without it, OpenSSL lets a
# connection fail in both directions if one ends without close_notify (`PeerTlsSocket`).
_END_WITHOUT_NOTICE = 1 << 7

_NAME = "Perch host"
_LIFETIME = timedelta(days=3650)
# A certificate that is valid for less is replaced when the proxy starts.
_RENEW_BEFORE_END = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A host's own certificate for its peers, and its key; both in PEM."""

    certificate: str
    key: str = field(repr=False)


def load_or_create_peer_certificate(directory: Path) -> PeerCertificate:
    """Returns the certificate kept in `directory`, or makes a new one. Only the owner can read the
    key's file. Raises OSError or ValueError if the files cannot be read."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate_path, key_path = directory / "peer.pem", directory / "peer.key"
    now = datetime.now(UTC)
    if certificate_path.exists() and key_path.exists():
        found = PeerCertificate(certificate_path.read_text(), key_path.read_text())
        ends = x509.load_pem_x509_certificate(found.certificate.encode()).not_valid_after_utc
        if ends - now > _RENEW_BEFORE_END:
            return found
    made = new_peer_certificate(now)
    durable.write(key_path, made.key.encode(), 0o600)
    durable.write(certificate_path, made.certificate.encode(), 0o644)
    return made


def new_peer_certificate(now: datetime) -> PeerCertificate:
    """Returns a certificate with a new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        builder(_NAME, issuer=name_of(_NAME), now=now, backdated=timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .public_key(key.public_key())
        # It can sign no other certificate, so each side accepts only itself.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return PeerCertificate(
        certificate.public_bytes(Encoding.PEM).decode(), private_pem(key).decode()
    )


class PeerTlsSocket(ClientTlsSocket):
    """A connection to or from another host. One direction may end long before the other, for a
    client that has sent everything and reads on. Python's close_notify would end both, so the end
    is only told by TCP. Postgres's own messages show whether what was sent is complete."""

    notifies_end = False

    def shutdown(self, how: int) -> None:
        """As of a plain socket. `SSLSocket.shutdown` would end both directions too."""
        socket.socket.shutdown(self, how)


class PeerTls:
    """The TLS contexts for connections to and from other hosts. `trust` says which hosts there
    are."""

    def __init__(self, own: PeerCertificate) -> None:
        self._own = own
        self._hosts: dict[bytes, str] = {}
        self._connecting: dict[str, ssl.SSLContext] = {}
        self.accepting = self._context(ssl.PROTOCOL_TLS_SERVER, "")

    def trust(self, certificates: Mapping[str, str]) -> None:
        """Accepts these certificates from now on and no others; in PEM, by the host's id. One that
        cannot be read is left out."""
        self._hosts, self._connecting, trusted = {}, {}, []
        for host, pem in certificates.items():
            try:
                read = x509.load_pem_x509_certificate(pem.encode())
                self._connecting[host] = self._context(ssl.PROTOCOL_TLS_CLIENT, pem)
            except ValueError as error:
                fields = {"host": host, "error": str(error)}
                log.error("cannot read the certificate of another host", extra=fields)
                continue
            self._hosts[read.public_bytes(Encoding.DER)] = host
            trusted.append(pem)
        self.accepting = self._context(ssl.PROTOCOL_TLS_SERVER, "\n".join(trusted))

    def connecting_to(self, host: str) -> ssl.SSLContext | None:
        """Returns the context for a connection to this host; None if it has no certificate that can
        be read."""
        return self._connecting.get(host)

    def host_of(self, connection: ssl.SSLSocket) -> str | None:
        """Returns the host that the other side's certificate belongs to, after the handshake."""
        return self._hosts.get(connection.getpeercert(binary_form=True) or b"")

    def _context(self, protocol: "ssl._SSLMethod", trusted: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.options |= ssl.OP_NO_TICKET | _END_WITHOUT_NOTICE
        # All certificates have the same subject. Without this, OpenSSL takes the first of these for
        # the issuer of every other, and accepts only the first.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if protocol is ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        context.sslsocket_class = PeerTlsSocket
        if trusted:
            context.load_verify_locations(cadata=trusted)
        own = self._own
        with in_memory(own.certificate.encode()) as chain, in_memory(own.key.encode()) as key:
            context.load_cert_chain(chain, key)
        return context
