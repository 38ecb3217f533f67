"""The addresses from which clients may connect to an endpoint."""

import json
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.address_ranges import is_within, parse_address, parse_range
from controlplane.proxy.authentication.access_rules import AccessRules, AddressSet, parse_rules
from tests.proxy.authentication.test_refusals import refusal
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy, plain
from tests.proxy.wire import RawClient

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
NOT_ALLOWED = (
    "This IP address 127.0.0.1 is not allowed to connect to this endpoint. Please add it to the "
    "allowed list in the console. Make sure to check for IPv4 or IPv6 addresses."
)
BLOCKED = "This connection is trying to access this endpoint from a blocked network."


def rules(*ips: str, is_protected: bool = False, **settings: Any) -> AccessRules | None:
    return parse_rules(
        json.dumps({"allowed_ips": {"ips": ips}, **settings}), is_protected=is_protected
    )


def rules_of(*ips: str, **settings: Any) -> AccessRules:
    found = rules(*ips, **settings)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("ips", "address"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["192.0.2.0/24"], "192.0.2.255"),
        (["192.0.2.9-192.0.2.12"], "192.0.2.10"),
        (["203.0.113.1", "192.0.2.0/25", "192.0.2.64/26"], "192.0.2.127"),
        (["192.0.2.7"], "::ffff:192.0.2.7"),
        (["2001:db8::/32"], "2001:db8:1::5"),
        (["fe80::/10"], "fe80::1%eth0"),
        (["0.0.0.0/0"], "8.8.8.8"),
    ],
)
def test_an_address_in_a_range_is_allowed(ips: list[str], address: str) -> None:
    assert rules_of(*ips).allows(address)


@pytest.mark.parametrize(
    ("ips", "address"),
    [
        (["192.0.2.7"], "192.0.2.8"),
        (["192.0.2.0/24"], "192.0.3.0"),
        (["192.0.2.9-192.0.2.12"], "192.0.2.13"),
        (["0.0.0.0/0"], "2001:db8::1"),
        (["::/0"], "192.0.2.7"),
        # A rule that cannot be parsed allows no address.
        (["a shop"], "127.0.0.1"),
    ],
)
def test_an_address_outside_the_ranges_is_refused(ips: list[str], address: str) -> None:
    assert not rules_of(*ips).allows(address)


@pytest.mark.parametrize(
    "written",
    [
        "::ffff:192.0.2.7",
        "::ffff:c000:207",
        "::ffff:192.0.2.0/120",
        "::ffff:0:0/96",
        "::ffff:192.0.2.1 - 192.0.2.9",
        "::ffff:192.0.2.1-::ffff:192.0.2.9",
    ],
)
def test_a_range_of_mapped_addresses_is_one_of_ipv4(written: str) -> None:
    assert rules_of(written).allows("192.0.2.7")
    assert rules_of(written).allows("::ffff:192.0.2.7")
    assert not rules_of(written).allows("2001:db8::7")


def test_a_range_beyond_the_mapped_addresses_is_one_of_ipv6() -> None:
    found = parse_range("::/64")
    assert (str(found.first), str(found.last)) == ("::", "::ffff:ffff:ffff:ffff")


@pytest.mark.parametrize("text", ["::1%lo", "fe80::1%1/64", "::1%a-::2%a", "::1-::2%a"])
def test_a_zone_is_no_part_of_a_range(text: str) -> None:
    """A client's address is compared without a zone."""
    with pytest.raises(ValueError, match="is not a range of addresses: use an address"):
        parse_range(text)


addresses = st.ip_addresses()
ranges = st.one_of(
    addresses.map(str),
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(lambda p: f"{p[0]}/{p[1]}"),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 128)).map(lambda p: f"{p[0]}/{p[1]}"),
    st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)).map(lambda p: f"{min(p)}-{max(p)}"),
)


@given(st.lists(ranges, max_size=8), addresses)
def test_a_set_contains_the_addresses_of_its_ranges(texts: list[str], address: Any) -> None:
    parsed = [parse_range(text) for text in texts]
    known = AddressSet.of(parsed)
    for one in (address, *(r.first for r in parsed), *(r.last for r in parsed)):
        assert (one in known) == is_within(one, parsed)
    for r in parsed:
        for number in (int(r.first) - 1, int(r.last) + 1):
            if 0 <= number < 2**r.first.max_prefixlen:
                beside = type(r.first)(number)
                assert (beside in known) == is_within(beside, parsed)


@pytest.mark.parametrize(
    ("address", "is_private"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("172.31.255.255", True),
        ("172.32.0.0", False),
        ("192.168.0.9", True),
        ("100.64.0.1", True),
        ("fd00::5", True),
        ("::ffff:10.0.0.1", True),
        ("192.0.2.7", False),
        ("8.8.8.8", False),
        ("2001:db8::1", False),
    ],
)
def test_private_addresses_are_allowed_if_public_ones_are_blocked(
    address: str, is_private: bool
) -> None:
    assert rules_of(block_public_connections=True).allows(address) == is_private


def test_both_rules_apply_together() -> None:
    found = rules_of("10.0.0.0/8", "192.0.2.7", block_public_connections=True)
    assert found.allows("10.0.0.1")
    assert not found.allows("192.168.0.1")
    assert not found.allows("192.0.2.7")


@pytest.mark.parametrize("name", ["protected_branches_only", "primary_branch_only"])
def test_a_rule_for_protected_branches_does_not_apply_to_others(name: str) -> None:
    settings = {"allowed_ips": {"ips": ["192.0.2.7"], name: True}}
    assert parse_rules(json.dumps(settings), is_protected=False) is None
    assert parse_rules(json.dumps(settings), is_protected=True) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"allowed_ips": None, "block_public_connections": None},
        {"allowed_ips": {"ips": []}, "block_public_connections": False},
        {"allowed_ips": {"ips": [], "protected_branches_only": True}},
        {"allowed_ips": "of an earlier version"},
    ],
)
def test_no_rule(settings: dict[str, Any]) -> None:
    assert parse_rules(json.dumps(settings), is_protected=True) is None


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
def test_an_address_that_is_not_allowed(proxy: RunningProxy, way: dict[str, str]) -> None:
    proxy.directory.endpoints[ENDPOINT].rules = rules("192.0.2.0/24")
    assert refusal(proxy, **ALICE, **way) == NOT_ALLOWED
    assert proxy.directory.outsiders == [(ENDPOINT, "alice", "127.0.0.1")]
    assert proxy.directory.refusals == []
    assert proxy.directory.endpoints[ENDPOINT].wakes == 0
    proxy.directory.endpoints[ENDPOINT].rules = rules("192.0.2.0/24", "127.0.0.1")
    proxy.connect(ENDPOINT, **ALICE, **way).close()


def test_the_password_is_not_requested(proxy: RunningProxy) -> None:
    proxy.directory.endpoints[ENDPOINT].rules = rules("192.0.2.0/24")
    client = RawClient(proxy.port)
    client.send_startup(user="alice", options=f"endpoint={ENDPOINT}")
    kind, payload = client.read_message()
    assert kind == b"E"
    assert b"C28000\0" in payload
    client.socket.close()


def test_an_unknown_endpoint_still_looks_like_a_wrong_password(proxy: RunningProxy) -> None:
    proxy.directory.endpoints[ENDPOINT].rules = rules("192.0.2.0/24")
    assert "password authentication failed" in refusal(proxy, "ep-no-such-000009", **ALICE)


def test_a_public_address_while_public_ones_are_blocked(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "controlplane.proxy.authentication.access_rules._PRIVATE_ADDRESSES",
        AddressSet.of([parse_range("10.0.0.0/8")]),
    )
    proxy.directory.endpoints[ENDPOINT].rules = rules(block_public_connections=True)
    assert refusal(proxy, **ALICE) == BLOCKED


def test_open_connections_from_a_newly_refused_address_end_with_the_reason(
    proxy: RunningProxy,
) -> None:
    with proxy.connect(ENDPOINT, **ALICE) as connection:
        for allowed in (None, rules("127.0.0.0/8"), rules(block_public_connections=True)):
            assert proxy.enforce_rules(ENDPOINT, allowed) == 0
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert proxy.enforce_rules(ENDPOINT, rules("192.0.2.7")) == 1
        with pytest.raises(psycopg.errors.AdminShutdown, match=r"127\.0\.0\.1 is no longer"):
            connection.execute("SELECT 1")


def test_rules_that_change_while_a_client_waits_for_its_compute(proxy: RunningProxy) -> None:
    """The old rules allowed the client, and it is not yet among those that a change is applied
    to."""
    endpoint = proxy.directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    client = RawClient.start_log_in(proxy.port, ENDPOINT, **ALICE)
    while not endpoint.wakes:
        pass
    endpoint.rules = rules("192.0.2.7")
    proxy.wake_up(ENDPOINT)
    answer = client.finish()
    assert answer.sqlstate == "28000"


def test_addresses_are_parsed_as_clients_have_them() -> None:
    assert str(parse_address("::ffff:192.0.2.7")) == "192.0.2.7"
