"""The certificate that the proxy makes for itself, or the operator's own."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from controlplane.proxy.tls import load_identity, load_or_create_identity


def certificate(directory: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates((directory / "server.pem").read_bytes())[0]


def test_the_first_start_makes_a_certificate_for_the_region(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path / "tls", "eu.example.com")
    names = certificate(tmp_path / "tls").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["eu.example.com", "*.eu.example.com"]


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path / "tls", "localhost")
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    for key in (tmp_path / "tls").glob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600


def test_the_next_start_keeps_the_certificate(tmp_path: Path) -> None:
    first = load_or_create_identity(tmp_path, "localhost")
    second = load_or_create_identity(tmp_path, "localhost")
    assert first.channel_binding == second.channel_binding


def test_another_region_gets_another_certificate_of_the_same_authority(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path, "localhost")
    authority = (tmp_path / "authority.pem").read_bytes()
    load_or_create_identity(tmp_path, "eu.example.com")
    assert (tmp_path / "authority.pem").read_bytes() == authority
    certificate(tmp_path).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


def test_a_key_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path, "localhost")
    with pytest.raises(ssl.SSLError):
        load_identity(tmp_path / "server.pem", tmp_path / "authority.key")
