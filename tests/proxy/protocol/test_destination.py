"""Which endpoint a client names, by its host name or its options."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.wire.destination import Destination, find_destination
from controlplane.proxy.wire.errors import (
    ForeignServerName,
    HistoryNotKept,
    InconsistentEndpoint,
    MalformedEndpoint,
    MissingEndpoint,
    ProxyError,
)

REGION = "eu.example.com"


def find(server_name: str | None = None, options: str | None = None) -> Destination:
    parameters = {b"user": b"alice"}
    if options is not None:
        parameters[b"options"] = options.encode()
    return find_destination(parameters, server_name=server_name, domains=[REGION])


@pytest.mark.parametrize(
    "name", ["ep-a.eu.example.com", "EP-A.EU.Example.com", "ep-a.eu.example.com."]
)
def test_the_host_names_first_label_is_the_endpoint(name: str) -> None:
    assert find(name) == Destination("ep-a", pooled=False, parameters={b"user": b"alice"})


@pytest.mark.parametrize("option", ["endpoint=ep-a", "project=ep-a"])
def test_an_option_names_the_endpoint_and_is_not_forwarded(option: str) -> None:
    assert find(options=option) == Destination("ep-a", pooled=False, parameters={b"user": b"alice"})


def test_other_options_are_forwarded_unchanged() -> None:
    found = find(options=r"-c search_path=a\ b  endpoint=ep-a -c geqo=off")
    assert found.endpoint_id == "ep-a"
    assert found.parameters[b"options"] == rb"-c search_path=a\ b -c geqo=off"


def test_options_without_an_endpoint_are_left_alone() -> None:
    assert find("ep-a.eu.example.com", "-c  geqo=off").parameters[b"options"] == b"-c  geqo=off"


@pytest.mark.parametrize(
    ("server_name", "options"),
    [
        ("ep-a-pooler.eu.example.com", None),
        (None, "endpoint=ep-a-pooler"),
        ("ep-a-pooler.eu.example.com", "endpoint=ep-a"),
        ("ep-a.eu.example.com", "endpoint=ep-a-pooler"),
    ],
)
def test_a_suffix_selects_the_pooler(server_name: str | None, options: str | None) -> None:
    found = find(server_name, options)
    assert (found.endpoint_id, found.pooled) == ("ep-a", True)


def test_a_host_name_and_an_option_may_name_the_same_endpoint() -> None:
    assert find("ep-a.eu.example.com", "endpoint=ep-a").endpoint_id == "ep-a"


def test_a_host_name_and_an_option_for_different_endpoints_are_refused() -> None:
    with pytest.raises(InconsistentEndpoint) as caught:
        find("ep-a.eu.example.com", "endpoint=ep-b")
    assert str(caught.value) == (
        "Inconsistent project name inferred from SNI ('ep-a') and project option ('ep-b')."
    )


@pytest.mark.parametrize("options", [None, "-c geqo=off", "endpoint=ep-a endpoint=ep-b"])
@pytest.mark.parametrize("server_name", [None, REGION])
def test_no_endpoint_is_refused(server_name: str | None, options: str | None) -> None:
    with pytest.raises(MissingEndpoint, match=r"^Endpoint ID is not specified\. "):
        find(server_name, options)


def test_a_host_of_another_region_is_refused() -> None:
    with pytest.raises(ForeignServerName, match=r"'ep-a\.us\.example\.com'"):
        find("ep-a.us.example.com")


def test_a_host_of_another_region_is_ignored_beside_an_option() -> None:
    assert find("db.tunnel.test", "endpoint=ep-a").endpoint_id == "ep-a"


@pytest.mark.parametrize(
    "option", ["neon_timestamp:2026-01-31T12:00:00Z", "neon_lsn:0/234235", "neon_lsn:"]
)
@pytest.mark.parametrize("server_name", ["br-a.eu.example.com", "ep-a.eu.example.com", None])
def test_a_time_in_the_past_is_refused_by_name(server_name: str | None, option: str) -> None:
    name = option.partition(":")[0]
    for options in (option, f"-c geqo=off {option}", f"endpoint=ep-a {option}"):
        with pytest.raises(HistoryNotKept, match=rf"\({name}\) is not offered by this server"):
            find(server_name, options)


def test_settings_with_similar_names_are_left_alone() -> None:
    options = "-c application_name=neon_lsn:0/1"
    assert find("ep-a.eu.example.com", options).parameters[b"options"] == options.encode()


@pytest.mark.parametrize("name", ["", "ep.a", "ep_a", "ep/../a", "ep-ä", "a" * 64, "ep\u0000a"])
def test_invalid_characters_are_refused(name: str) -> None:
    with pytest.raises(MalformedEndpoint):
        find(options=f"endpoint={name}")


def test_a_name_two_labels_below_the_region_is_refused() -> None:
    with pytest.raises(MalformedEndpoint):
        find("www.ep-a.eu.example.com")


@given(options=st.binary(max_size=60), name=st.text(max_size=40))
def test_any_input_is_routed_or_refused(options: bytes, name: str) -> None:
    with contextlib.suppress(ProxyError):
        find_destination({b"options": options}, server_name=name, domains=[REGION])
