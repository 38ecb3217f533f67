"""Perch's own certificate authority, for hosts whose operator supplies no certificate, and the
certificates that it issues. The authority is created on the first start and kept in the state
directory. Clients that verify certificates have to trust the authority's certificate.

The region's certificate has a wildcard for the endpoints below the region's host, and usually every
client gets that one. But clients that follow OpenSSL's rules do not accept a wildcard below a
single label (`*.localhost`). In a region with such a host, each endpoint's name gets a certificate
of its own when a client asks for it.

Such a certificate and its OpenSSL context cost a millisecond and 25 kB, and anybody may ask for any
name. So only names that an endpoint could have get one. Few certificates are kept for names under
which no client has authenticated yet, and their number in each second is limited. A client beyond
the limit is shown the region's certificate, which suits all clients that do not verify the name.
"""

import ipaddress
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane import durable
from controlplane.proxy.wire.tls import ClientTlsSocket, context_of, end_point_hash, problem_of

_CERTIFICATE_LIFETIME = timedelta(days=90)
_AUTHORITY_LIFETIME = timedelta(days=3650)
_AUTHORITY_NAME = "Perch certificate authority"
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

_ENDPOINT_LABEL = re.compile(r"ep-[a-z0-9]+(-[a-z0-9]+){1,4}")
# The host names below the region's that clients of SQL over HTTP use.
_HTTP_LABELS = ("api", "apiauth")
_LOOPBACK = ["127.0.0.1", "::1"]
_MAX_PROVEN, _MAX_UNPROVEN = 2_000, 250
# New names for each second, and how many may be issued at once.
_NEW_NAMES_PER_SECOND, _MAX_BURST = 50.0, 200.0
_RENEW_AFTER = _CERTIFICATE_LIFETIME * 2 / 3


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """The certificate that clients are to trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self, names: list[str], key: ec.EllipticCurvePrivateKey, *, now: datetime
    ) -> x509.Certificate:
        """Issues a server certificate for the key, valid for these host names and IP addresses.

        The first name becomes the common name. Takes about 0.1 ms.
        """
        return (
            builder(names[0], issuer=self.certificate.subject, now=now)
            .not_valid_after(min(now + _CERTIFICATE_LIFETIME, self.certificate.not_valid_after_utc))
            .public_key(key.public_key())
            .add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


def load_or_create_authority(directory: Path) -> Authority:
    """Returns the authority kept in `directory`, or creates one. An expired authority, which no
    client can trust any more, is replaced. Raises OSError or ValueError if the files cannot be
    read."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate_path, key_path = directory / "authority.pem", directory / "authority.key"
    now = datetime.now(UTC)
    if certificate_path.exists() and key_path.exists():
        found = authority_of(certificate_path.read_bytes(), key_path.read_bytes())
        if found.certificate.not_valid_after_utc > now:
            return found
    authority = _new_authority(now)
    durable.write(key_path, private_pem(authority.key), 0o600)
    durable.write(certificate_path, authority.pem.encode(), 0o644)
    return authority


def authority_of(certificate: bytes, key: bytes) -> Authority:
    """Returns the authority with this certificate and this key, both PEM. Raises ValueError."""
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return Authority(x509.load_pem_x509_certificate(certificate), private)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _new_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        builder(_AUTHORITY_NAME, issuer=name_of(_AUTHORITY_NAME), now=now)
        .not_valid_after(now + _AUTHORITY_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def builder(
    subject: str, *, issuer: x509.Name, now: datetime, backdated: timedelta = timedelta(hours=1)
) -> x509.CertificateBuilder:
    """Begins a certificate. It is backdated for those whose clocks are slightly behind."""
    return (
        x509.CertificateBuilder()
        .subject_name(name_of(subject))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - backdated)
    )


def name_of(common_name: str) -> x509.Name:
    # X.509 limits a common name to 64 characters. Clients verify the alternative names instead.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True, slots=True)
class _Shown:
    context: ssl.SSLContext
    channel_binding: bytes
    renew_at: datetime


class IssuingIdentity:
    """See `tls.TlsIdentity`. Used by one process. If it is made before processes are forked, they
    all share one key."""

    def __init__(
        self,
        authority: Authority,
        *domains: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._authority = authority
        self._domains = domains
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own_names = _own_names(domains)
        self._region = self._issue(self._own_names)
        # By name, the last used at the end.
        self._proven: OrderedDict[str, _Shown] = OrderedDict()
        self._unproven: OrderedDict[str, _Shown] = OrderedDict()
        self._may_issue = _MAX_BURST
        self._counted_at = time.monotonic()

    @property
    def context(self) -> ssl.SSLContext:
        return self._of_region().context

    @property
    def authority_pem(self) -> str:
        return self._authority.pem

    def problem(self) -> tuple[str, str] | None:
        """See `tls.TlsIdentity`. Only the authority is not renewed while the proxy runs."""
        return problem_of(self._authority.certificate, _AUTHORITY_NAME)

    def expires(self) -> tuple[str, datetime]:
        """See `tls.TlsIdentity`."""
        return "authority", self._authority.certificate.not_valid_after_utc

    def note_authenticated(self, server_name: str | None) -> None:
        """See `tls.TlsIdentity`. The name's certificate is kept longer than those of names under
        which no client has authenticated."""
        name = _normal(server_name or "")
        if shown := self._unproven.pop(name, None):
            _keep(self._proven, name, shown, most=_MAX_PROVEN)

    def _choose(
        self, socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        """Chooses the certificate. Called in the handshake, once the client's SNI is known."""
        if not isinstance(socket, ClientTlsSocket):
            return
        socket.server_name = name
        if name is not None:
            shown = self._of_name(_normal(name))
        else:
            # A client that connects to an address sends no name.
            shown = self._of_address(socket.getsockname()[0].partition("%")[0])
        socket.context, socket.channel_binding = shown.context, shown.channel_binding

    def _of_name(self, name: str) -> _Shown:
        label, _, domain = name.partition(".")
        needs_own = domain in self._domains and "." not in domain.strip(".")
        if not needs_own or not _ENDPOINT_LABEL.fullmatch(label):
            return self._of_region()
        return self._kept_or_issued(name, [name])

    def _of_address(self, address: str) -> _Shown:
        if address in self._own_names:
            return self._of_region()
        return self._kept_or_issued(address, [address, *self._own_names])

    def _of_region(self) -> _Shown:
        if self._region.renew_at <= self._now():
            self._region = self._issue(self._own_names)
        return self._region

    def _kept_or_issued(self, name: str, names: list[str]) -> _Shown:
        kept, most = self._unproven, _MAX_UNPROVEN
        if name in self._proven:
            kept, most = self._proven, _MAX_PROVEN
        shown = kept.get(name)
        if shown is None or shown.renew_at <= self._now():
            if kept is self._unproven and not self._may_issue_now():
                return self._of_region()
            shown = self._issue(names)
        _keep(kept, name, shown, most=most)
        return shown

    def _may_issue_now(self) -> bool:
        """Returns True if one more new name may get a certificate now, and counts it."""
        now = time.monotonic()
        gained = (now - self._counted_at) * _NEW_NAMES_PER_SECOND
        self._may_issue = min(_MAX_BURST, self._may_issue + gained)
        self._counted_at = now
        if self._may_issue < 1:
            return False
        self._may_issue -= 1
        return True

    def _issue(self, names: list[str]) -> _Shown:
        now = self._now()
        leaf = self._authority.issue(names, self._key, now=now)
        context = context_of(leaf.public_bytes(Encoding.PEM), private_pem(self._key))
        context.sni_callback = self._choose
        return _Shown(context, end_point_hash(leaf), now + _RENEW_AFTER)


def _own_names(domains: Sequence[str]) -> list[str]:
    """Returns the names that the region's certificate is valid for."""
    names = []
    for domain in domains:
        names += [domain, f"*.{domain}"]
        names += [f"{label}.{domain}" for label in _HTTP_LABELS]
        if domain == "localhost" or domain.endswith(".localhost"):
            names += ["localhost", *_LOOPBACK]
    return list(dict.fromkeys(names))


def _normal(name: str) -> str:
    return name.rstrip(".").lower()


def _keep(kept: OrderedDict[str, _Shown], name: str, shown: _Shown, *, most: int) -> None:
    kept[name] = shown
    kept.move_to_end(name)
    if len(kept) > most:
        kept.popitem(last=False)
