"""The certificate that the proxy presents in TLS: the operator's, or certificates of Perch's own
authority (`certificates`); and the host name that a client asks for in its ClientHello.
"""

import hashlib
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import serialization

log = logging.getLogger(__name__)

ALPN_POSTGRES = "postgresql"
ALPN_HTTP = "http/1.1"

_WEAK_HASHES = {"md5", "sha1"}
# Seconds between two checks whether the operator's files have been replaced.
_CHECK_INTERVAL = 10.0
_MAX_FILE_BYTES = 1 << 20  # bytes
# A certificate that is valid for less is a problem.
_MIN_VALIDITY = timedelta(days=14)


class TlsIdentity(Protocol):
    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next handshake. Its sockets are ClientTlsSockets."""

    @property
    def authority_pem(self) -> str:
        """Perch's authority, which clients are to trust; "" with an operator's certificate."""

    def problem(self) -> tuple[str, str] | None:
        """What an operator must know: the name of a problem, and words. None if there is none."""

    def expires(self) -> tuple[str, datetime]:
        """What ends first without somebody who renews it, and when: ("operator", …) for the
        operator's certificate, ("authority", …) for Perch's own authority."""

    def note_authenticated(self, server_name: str | None) -> None:
        """Notes that a client that asked for this name (SNI) has authenticated."""


class ClientTlsSocket(ssl.SSLSocket):
    """A client's TLS connection: the host name that it asked for (SNI), and the binding to the
    certificate that it was shown. The proxies' connections to each other have neither of the
    two."""

    # Whether the end of what is sent is told by TLS's close_notify too.
    notifies_end = True

    server_name: str | None = None
    # `tls-server-end-point` of RFC 5929, which SCRAM-SHA-256-PLUS binds to.
    channel_binding: bytes = b""


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class OperatorIdentity:
    """A certificate chain and its key in PEM files, presented to every client. Files that are
    replaced while the proxy runs are used for later handshakes, once they can be read and match.

    The constructor raises ValueError if they cannot be read or do not match.
    """

    # Clients know the chain's authority already, or learn it from the operator.
    authority_pem = ""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        opened: Callable[[Path], int] = _opened,
    ) -> None:
        """`opened` returns a descriptor of one of the two files, which this process may be unable
        to open by itself."""
        self._certificate, self._key, self._opened = certificate, key, opened
        # Why the present files cannot be used; "" if they can.
        self._complaint = ""
        try:
            self._seen = self._look()
            self._context = self._load()
        except (OSError, ValueError) as error:
            raise ValueError(f"{certificate} cannot be used with {key}: {error}") from error
        self._next_look = time.monotonic() + _CHECK_INTERVAL

    @property
    def context(self) -> ssl.SSLContext:
        return self._context

    def problem(self) -> tuple[str, str] | None:
        """See `TlsIdentity`. From time to time it also has the files read again, in a thread:
        another process may be asked for them, and no client waits for that."""
        if time.monotonic() >= self._next_look:
            self._next_look = math.inf
            try:
                threading.Thread(target=self.refresh, name="certificate", daemon=True).start()
            except RuntimeError:  # too many threads: the next check may find fewer
                self._next_look = time.monotonic() + _CHECK_INTERVAL
        if self._complaint:
            return "certificate_unusable", f"{self._certificate}: {self._complaint}"
        return problem_of(self._leaf, str(self._certificate))

    def expires(self) -> tuple[str, datetime]:
        """See `TlsIdentity`."""
        return "operator", self._leaf.not_valid_after_utc

    def note_authenticated(self, server_name: str | None) -> None:
        pass

    def refresh(self) -> None:
        """Loads the files again if they have changed."""
        try:
            found = self._look()
            if found != self._seen:
                self._context = self._load()
        except (OSError, ValueError) as error:
            # They may be replaced one after the other, so the next check may find them matching.
            log.warning("cannot load the new certificate", extra={"error": str(error)})
            self._complaint = f"cannot be used with {self._key}: {error}"
            return
        finally:
            self._next_look = time.monotonic() + _CHECK_INTERVAL
        self._complaint = ""
        if found != self._seen:
            self._seen = found
            log.info("certificate reloaded", extra={"file": str(self._certificate)})

    def _look(self) -> list[tuple[int, int]]:
        found = []
        for path in (self._certificate, self._key):
            with open(self._opened(path), "rb") as file:
                stat = os.fstat(file.fileno())
                found.append((stat.st_ino, stat.st_mtime_ns))
        return found

    def _read(self, path: Path) -> bytes:
        with open(self._opened(path), "rb") as file:
            return file.read(_MAX_FILE_BYTES)

    def _load(self) -> ssl.SSLContext:
        chain = self._read(self._certificate)
        context = context_of(chain, self._read(self._key))
        leaf = x509.load_pem_x509_certificates(chain)[0]
        binding = end_point_hash(leaf)
        self._leaf = leaf

        def remember(
            socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
        ) -> None:
            if isinstance(socket, ClientTlsSocket):
                socket.server_name, socket.channel_binding = name, binding

        context.sni_callback = remember
        return context


def context_of(chain: bytes, key: bytes) -> ssl.SSLContext:
    """Returns a context for the chain and the key, both PEM. Raises OSError or ValueError if they
    cannot be read or do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with in_memory(chain) as chain_file, in_memory(key) as key_file:
        context.load_cert_chain(chain_file, key_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN_POSTGRES, ALPN_HTTP])
    # Clients do not resume sessions, and tickets would cost each connection two messages.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.sslsocket_class = ClientTlsSocket
    return context


@contextmanager
def in_memory(pem: bytes) -> Iterator[str]:
    """Gives the path of a file with these bytes that is never on a disk: Python loads certificates
    only from files."""
    with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(pem)
        yield f"/proc/self/fd/{file.fileno()}"


def problem_of(certificate: x509.Certificate, name: str) -> tuple[str, str] | None:
    """Returns the problem of a certificate that ends soon or has ended; see `TlsIdentity`."""
    ends = certificate.not_valid_after_utc
    if ends - datetime.now(UTC) > _MIN_VALIDITY:
        return None
    return "certificate_ends", f"{name} is valid until {ends:%Y-%m-%d %H:%M} UTC"


def end_point_hash(certificate: x509.Certificate) -> bytes:
    """Returns the certificate's hash for `tls-server-end-point` (RFC 5929)."""
    algorithm = certificate.signature_hash_algorithm
    name = "sha256" if algorithm is None or algorithm.name in _WEAK_HASHES else algorithm.name
    return hashlib.new(name, certificate.public_bytes(serialization.Encoding.DER)).digest()


class _Handshake(ssl.SSLObject):
    server_name: str | None = None


def server_name_in(hello: bytes) -> str | None:
    """Returns the host name that the client asks for; None if it asks for none, or begins no TLS
    handshake. Raises SSLWantReadError if the message goes on behind these bytes."""
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    handshake = _CONTEXT.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    assert isinstance(handshake, _Handshake)
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        raise
    except ssl.SSLError:
        pass  # `_remember` ends every handshake
    return handshake.server_name


def _remember(handshake: Any, name: str | None, _: ssl.SSLContext) -> int:
    handshake.server_name = name
    return ssl.ALERT_DESCRIPTION_USER_CANCELLED


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_CONTEXT.sslobject_class = _Handshake
_CONTEXT.sni_callback = _remember
