"""The certificates that the proxy makes for itself, and those of an operator."""

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from controlplane.proxy.wire import certificates, tls
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from controlplane.proxy.wire.tls import OperatorIdentity, end_point_hash
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.support.certificates import certificate
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
# The names that clients may use for the region, and with which `options`.
NAMES = {
    "an endpoint": (f"{ENDPOINT}.localhost", ""),
    "its pooler": (f"{ENDPOINT}-pooler.localhost", ""),
    "the region": ("localhost", f"endpoint={ENDPOINT}"),
    "an address": ("127.0.0.1", f"endpoint={ENDPOINT}"),
}


def shown(proxy: RunningProxy | int, server_name: str | None) -> x509.Certificate:
    """Return the certificate that a client with this server name gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    port = proxy if isinstance(proxy, int) else proxy.port
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as tls,
    ):
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        assert tls.selected_alpn_protocol() == "postgresql"
        return x509.load_der_x509_certificate(der)


def names_of(leaf: x509.Certificate) -> list[str]:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def region_names(host: str) -> list[str]:
    return [host, f"*.{host}", f"api.{host}", f"apiauth.{host}"]


@pytest.mark.parametrize(("host", "options"), NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_libpq_verifies_every_name(
    proxy: RunningProxy, authority: Path, host: str, options: str, negotiation: str
) -> None:
    proxy.directory.endpoints[ENDPOINT].pooler = proxy.directory.endpoints[ENDPOINT].address
    with proxy.connect(
        ENDPOINT,
        **ALICE,
        host=host,
        options=options,
        sslmode="verify-full",
        sslrootcert=str(authority),
        sslnegotiation=negotiation,
        channel_binding="require",
    ) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)


@pytest.mark.parametrize(("host", "options"), NAMES.values(), ids=NAMES.keys())
def test_pythons_own_tls_verifies_every_name(
    proxy: RunningProxy, authority: Path, host: str, options: str
) -> None:
    """As strictly as Python can, which is what asyncpg uses."""
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    proxy.directory.endpoints[ENDPOINT].pooler = proxy.directory.endpoints[ENDPOINT].address
    with (
        socket.create_connection(("127.0.0.1", proxy.port)) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        assert tls.version() == "TLSv1.3"


def assert_openssl_verifies(proxy: RunningProxy, authority: Path, host: str) -> None:
    answer = subprocess.run(
        [
            *("openssl", "s_client", "-connect", f"127.0.0.1:{proxy.port}", "-starttls"),
            *("postgres", "-servername", host, "-verify_hostname", host, "-x509_strict"),
            *("-verify_return_error", "-CAfile", str(authority), "-brief"),
        ],
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert "Verification: OK" in answer.stderr
    assert "Verified peername: " in answer.stderr


def test_each_name_has_a_certificate_and_all_have_one_key(proxy: RunningProxy) -> None:
    first, again = (shown(proxy, f"{ENDPOINT}.localhost") for _ in range(2))
    pooler, region = shown(proxy, f"{ENDPOINT}-pooler.localhost"), shown(proxy, None)
    assert first == again
    assert names_of(first) == [f"{ENDPOINT}.localhost"]
    assert names_of(pooler) == [f"{ENDPOINT}-pooler.localhost"]
    assert names_of(region) == [*region_names("localhost"), "127.0.0.1", "::1"]
    assert first.public_key() == pooler.public_key() == region.public_key()


@pytest.mark.parametrize(
    "name",
    ["x.localhost", "ep-.localhost", f"a.{ENDPOINT}.localhost", f"{ENDPOINT}.example.com"],
)
def test_a_name_that_no_endpoint_can_have_gets_the_regions_certificate(
    proxy: RunningProxy, name: str
) -> None:
    assert shown(proxy, name) == shown(proxy, None)


def test_a_region_on_another_host_has_a_certificate_for_its_own_address(
    authority: Path, directory: MemoryDirectory
) -> None:
    """A client that connects to an address verifies the address."""
    identity = IssuingIdentity(load_or_create_authority(authority.parent), "eu.example.com")
    with running_proxy(identity, directory, domains=["eu.example.com"]) as proxy:
        own = region_names("eu.example.com")
        assert names_of(shown(proxy, None)) == [*own, "127.0.0.1"]
        assert names_of(shown(proxy, "localhost")) == own
        # A certificate for one name delays no other, and shows nobody which names were used before.
        for name in (ENDPOINT, f"{ENDPOINT}-pooler", "ep-never-seen-1"):
            host = f"{name}.eu.example.com"
            assert names_of(shown(proxy, host.upper())) == own
            assert_openssl_verifies(proxy, authority, host)


def test_certificates_for_unknown_names_are_limited_and_displace_no_endpoints(
    authority: Path, directory: MemoryDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_MAX_UNPROVEN", 5)
    monkeypatch.setattr(certificates, "_MAX_BURST", 20.0)
    monkeypatch.setattr(certificates, "_NEW_NAMES_PER_SECOND", 0.0)
    identity = IssuingIdentity(load_or_create_authority(authority.parent), "localhost")
    with running_proxy(identity, directory) as proxy:
        proxy.connect(ENDPOINT, **ALICE).close()
        ours = shown(proxy, f"{ENDPOINT}.localhost")
        seen = [shown(proxy, f"ep-any-name-{number}.localhost") for number in range(30)]
        assert len(identity._unproven) == 5
        # Beyond the limit, clients get the region's certificate.
        assert len({leaf.serial_number for leaf in seen}) == 19 + 1
        assert seen[-1] == shown(proxy, None)
        assert shown(proxy, f"{ENDPOINT}.localhost") == ours


def test_certificates_are_renewed_while_the_proxy_runs(
    authority: Path, directory: MemoryDirectory
) -> None:
    moved = timedelta(0)
    identity = IssuingIdentity(
        load_or_create_authority(authority.parent),
        "localhost",
        now=lambda: datetime.now(UTC) + moved,
    )
    with running_proxy(identity, directory) as proxy:
        names = f"{ENDPOINT}.localhost", None
        first = [shown(proxy, name) for name in names]
        moved = timedelta(days=59)
        assert [shown(proxy, name) for name in names] == first
        moved = timedelta(days=61)
        renewed = [shown(proxy, name) for name in names]
        for old, new in zip(first, renewed, strict=True):
            assert new.not_valid_after_utc > old.not_valid_after_utc
            assert names_of(new) == names_of(old)
        with proxy.connect(ENDPOINT, **ALICE, channel_binding="require") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_key_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    load_or_create_authority(tmp_path / "tls")
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "tls" / "authority.key").stat().st_mode & 0o777 == 0o600


def test_the_next_start_keeps_the_authority(tmp_path: Path) -> None:
    first, second = load_or_create_authority(tmp_path), load_or_create_authority(tmp_path)
    assert first.pem == second.pem == (tmp_path / "authority.pem").read_text()


def test_an_expired_authority_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "controlplane.proxy.wire.certificates._AUTHORITY_LIFETIME", timedelta(seconds=-1)
    )
    expired = load_or_create_authority(tmp_path)
    monkeypatch.undo()
    assert load_or_create_authority(tmp_path).pem != expired.pem


def test_the_operators_certificate_is_used_for_all_and_for_channel_binding(
    tmp_path: Path, directory: MemoryDirectory
) -> None:
    pem = certificate(tmp_path, "db.example.com")
    identity = OperatorIdentity(pem, pem)
    with running_proxy(identity, directory) as proxy:
        for name in (f"{ENDPOINT}.localhost", None):
            assert names_of(shown(proxy, name)) == ["db.example.com"]
        proxy.connect(ENDPOINT, **ALICE, channel_binding="require").close()


def test_an_operators_certificate_that_is_replaced_is_loaded(
    tmp_path: Path, directory: MemoryDirectory
) -> None:
    pem = certificate(tmp_path, "old.example.com")
    key = tmp_path / "key.pem"
    shutil.copy(pem, key)
    identity = OperatorIdentity(pem, key)
    with running_proxy(identity, directory) as proxy:
        assert names_of(shown(proxy, None)) == ["old.example.com"]
        new = certificate(tmp_path, "new.example.com")
        new.replace(pem)
        identity.refresh()
        problem = identity.problem()
        assert problem is not None
        assert problem[0] == "certificate_unusable"
        assert str(key) in problem[1]
        # The key does not match yet: the previous certificate stays in use.
        assert names_of(shown(proxy, None)) == ["old.example.com"]
        shutil.copy(pem, key)
        identity.refresh()
        assert names_of(shown(proxy, None)) == ["new.example.com"]
        assert identity.problem() is None
        proxy.connect(ENDPOINT, **ALICE, channel_binding="require").close()


def test_nobody_waits_for_the_operators_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, hangs, freed = certificate(tmp_path, "old.example.com"), False, threading.Event()

    def opened(path: Path) -> int:
        if hangs:
            freed.wait(20)
        return os.open(path, os.O_RDONLY)

    identity = OperatorIdentity(pem, pem, opened=opened)
    before = identity.context
    hangs = True
    certificate(tmp_path, "new.example.com").replace(pem)
    monkeypatch.setattr(identity, "_next_look", 0.0)
    try:
        for _ in range(3):
            assert identity.problem() is None
            assert identity.context is before
        assert [one.name for one in threading.enumerate()].count("certificate") == 1
    finally:
        freed.set()
    wait_for(lambda: identity.context is not before, "the new certificate")


def test_a_thread_that_cannot_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate(tmp_path, "old.example.com")
    identity = OperatorIdentity(pem, pem)
    before = identity.context
    certificate(tmp_path, "new.example.com").replace(pem)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tls, "_CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(identity, "_next_look", 0.0)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fail)
        assert identity.problem() is None
    assert identity.problem() is None
    wait_for(lambda: identity.context is not before, "the new certificate")


def test_a_certificate_that_ends_soon_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days, name in ((15, None), (13, "certificate_ends"), (-1, "certificate_ends")):
        pem = certificate(tmp_path, "localhost", days=days)
        problem = OperatorIdentity(pem, pem).problem()
        assert (problem and problem[0]) == name
    monkeypatch.setattr(certificates, "_AUTHORITY_LIFETIME", timedelta(days=13))
    issuing = IssuingIdentity(load_or_create_authority(tmp_path / "tls"), "localhost")
    problem = issuing.problem()
    assert problem is not None
    assert "Perch certificate authority is valid until" in problem[1]


def test_a_key_that_does_not_match_is_refused(tmp_path: Path) -> None:
    authority = load_or_create_authority(tmp_path)
    assert len(end_point_hash(authority.certificate)) == 32
    pem, key = certificate(tmp_path, "localhost"), tmp_path / "authority.key"
    with pytest.raises(ValueError, match=f"{pem} cannot be used with {key}: .*MISMATCH"):
        OperatorIdentity(pem, key)


def test_when_a_certificate_ends_is_known(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "localhost", days=15)
    name, at = OperatorIdentity(pem, pem).expires()
    assert name == "operator"
    assert timedelta(days=14) < at - datetime.now(UTC) <= timedelta(days=15)
    name, at = IssuingIdentity(load_or_create_authority(tmp_path / "tls"), "localhost").expires()
    assert name == "authority"
    assert at - datetime.now(UTC) > timedelta(days=3000)


def test_a_certificate_for_a_new_name_is_made_quickly(identity: IssuingIdentity) -> None:
    began = time.process_time()
    for number in range(20):
        identity._of_name(f"ep-quick-wren-{number}.localhost")
    assert (time.process_time() - began) / 20 < 0.02
