"""The proxy's TLS identity: the operator's certificate, or one for the region's host names signed
by an authority of our own, made on the first start and renewed before it expires."""

import hashlib
import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ALPN_PROTOCOL = "postgresql"

_AUTHORITY_LIFETIME = timedelta(days=3650)
_CERTIFICATE_LIFETIME = timedelta(days=397)
_RENEW_BEFORE = timedelta(days=30)
_WEAK_HASHES = {"md5", "sha1"}


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    context: ssl.SSLContext
    # `tls-server-end-point` of RFC 5929, which SCRAM-SHA-256-PLUS binds to.
    channel_binding: bytes


class ClientTlsSocket(ssl.SSLSocket):
    """A client's connection, with the host name it asked for."""

    server_name: str | None = None


def load_identity(certificate: Path, key: Path) -> TlsIdentity:
    """Reads a certificate chain and its key from PEM files.

    Raises OSError or ValueError where they cannot be read or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN_PROTOCOL])
    # No client resumes a session, and tickets would cost each connection two messages.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.sslsocket_class = ClientTlsSocket
    context.sni_callback = _remember_server_name
    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    return TlsIdentity(context, _end_point_hash(leaf))


def load_or_create_identity(directory: Path, region_host: str) -> TlsIdentity:
    """The identity kept in `directory`, with a certificate for `region_host` and all names one
    label below it. Clients that verify trust `authority.pem` there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = directory / "server.pem", directory / "server.key"
    if not _is_current(certificate, key, region_host):
        _create_certificate(directory, region_host)
    return load_identity(certificate, key)


def _remember_server_name(
    socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _context: ssl.SSLContext
) -> None:
    if isinstance(socket, ClientTlsSocket):
        socket.server_name = name


def _end_point_hash(certificate: x509.Certificate) -> bytes:
    algorithm = certificate.signature_hash_algorithm
    name = "sha256" if algorithm is None or algorithm.name in _WEAK_HASHES else algorithm.name
    return hashlib.new(name, certificate.public_bytes(serialization.Encoding.DER)).digest()


def _is_current(certificate: Path, key: Path, region_host: str) -> bool:
    if not certificate.exists() or not key.exists():
        return False
    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    is_for_region = f"*.{region_host}" in names.get_values_for_type(x509.DNSName)
    return is_for_region and leaf.not_valid_after_utc - _RENEW_BEFORE > datetime.now(UTC)


def _create_certificate(directory: Path, region_host: str) -> None:
    authority, authority_key = _load_or_create_authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(region_host), x509.DNSName(f"*.{region_host}")]
    if region_host == "localhost":
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    leaf = (
        _builder(region_host, issuer=authority.subject, lifetime=_CERTIFICATE_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write_private(directory / "server.key", _private_pem(key))
    _write(directory / "server.pem", _pem(leaf) + _pem(authority))


def _load_or_create_authority(
    directory: Path,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = directory / "authority.pem", directory / "authority.key"
    if certificate_path.exists() and key_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(certificate_path.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Perch certificate authority")
    certificate = (
        _builder("Perch certificate authority", issuer=name, lifetime=_AUTHORITY_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_private(key_path, _private_pem(key))
    _write(certificate_path, _pem(certificate))
    return certificate, key


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _builder(subject: str, *, issuer: x509.Name, lifetime: timedelta) -> x509.CertificateBuilder:
    # Backdated, for clients whose clocks are a little slow.
    start = datetime.now(UTC) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + lifetime)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_private(path: Path, content: bytes) -> None:
    _write(path, content, mode=0o600)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Whole or not at all: a reader never meets half a file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
