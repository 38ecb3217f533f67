"""The addresses of webhooks: none that only Perch's host can reach."""

from ipaddress import ip_network
from typing import Any

import pytest

from controlplane.webhooks.addresses import may_be_called
from controlplane.webhooks.urls import NotAllowed, Target, target_of

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::8.8.8.8"]
NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_allowed(address: str) -> None:
    assert may_be_called(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_other_addresses_are_refused(address: str) -> None:
    assert not may_be_called(address)


def test_the_operator_may_allow_networks(settings: Any) -> None:
    settings.WEBHOOK_ALLOWED_NETWORKS = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    assert all(may_be_called(address) for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"))
    assert not any(may_be_called(address) for address in ("10.2.0.1", "fc00::1", "127.0.0.1"))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/")),
        ("https://EXAMPLE.com.:8443/a?b=c", Target("https", "example.com", 8443, "/a?b=c")),
        ("https://[2606:4700::1111]/x", Target("https", "2606:4700::1111", 443, "/x")),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com", "https"),
        ("ftp://example.com", "https"),
        ("file:///etc/passwd", "https"),
        ("gopher://example.com", "https"),
        ("example.com", "https"),
        ("", "ASCII"),
        ("https://", "name a host"),
        ("https:///x", "name a host"),
        ("https://user:word@example.com", "password"),
        ("https://user@example.com", "password"),
        ("https://example.com\\@evil.example", "password"),
        ("https://evil.example\\x", "name a host"),
        ("https://exa mple.com", "ASCII"),
        ("https://example.com/\n", "ASCII"),
        ("https://exämple.com", "ASCII"),
        ("https://example.com:0", "port 0"),
        ("https://example.com:65536", "not a URL"),
        ("https://example.com:x", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://example.com/#x", "fragment"),
        ("https://example.com/" + "x" * 2048, "2048"),
        ("https://127.0.0.1", "public address"),
        ("https://[::ffff:127.0.0.1]", "public address"),
        ("https://[fe80::1%25eth0]", "public address"),
    ],
)
def test_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(NotAllowed, match=words):
        target_of(url)
