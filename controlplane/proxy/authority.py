"""Perch's own certificate authority, for hosts whose operator supplies no certificate. It is
created on the first start and kept in the state directory. Clients that verify certificates are
given its certificate to trust."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane import durable

CERTIFICATE_LIFETIME = timedelta(days=90)
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
            _builder(names[0], issuer=self.certificate.subject, now=now)
            .not_valid_after(min(now + CERTIFICATE_LIFETIME, self.certificate.not_valid_after_utc))
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
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        if certificate.not_valid_after_utc > now:
            return Authority(certificate, key)
    authority = _new_authority(now)
    durable.write(key_path, private_pem(authority.key), 0o600)
    durable.write(certificate_path, authority.pem.encode(), 0o644)
    return authority


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _new_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_AUTHORITY_NAME, issuer=_name(_AUTHORITY_NAME), now=now)
        .not_valid_after(now + _AUTHORITY_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _builder(subject: str, *, issuer: x509.Name, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        # Backdated, for clients whose clocks are slightly behind.
        .not_valid_before(now - timedelta(hours=1))
    )


def _name(common_name: str) -> x509.Name:
    # X.509 limits a common name to 64 characters. Clients verify the alternative names instead.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
