"""Which of a client's start-up parameters a pooler gets."""

import pytest

from controlplane.proxy.wire.destination import Destination, for_the_pooler
from controlplane.proxy.wire.errors import (
    OptionThroughPooler,
    ReplicationThroughPooler,
    UnreadableParameter,
)


def asked(name: bytes, value: bytes, *, pooled: bool = True) -> Destination:
    return Destination("ep-calm-river-000001", pooled, {b"user": b"alice", name: value})


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (b"psql", rb"psql"),
        (b"\xff", rb"\xff"),
        ("é".encode(), rb"\xc3\xa9"),
        (b"a\nb\x7f", rb"a\x0ab\x7f"),
        (b"", b""),
    ],
)
def test_an_application_name_is_converted_as_by_postgres(name: bytes, written: bytes) -> None:
    found = for_the_pooler(asked(b"application_name", name))
    assert found.parameters == {b"user": b"alice", b"application_name": written}


@pytest.mark.parametrize(
    "name", [b"database", b"TimeZone", b"client_encoding", b"options", b"search_path"]
)
def test_a_value_that_is_not_utf8_is_refused_by_name(name: bytes) -> None:
    with pytest.raises(UnreadableParameter, match=name.decode()):
        for_the_pooler(asked(name, b"\xff"))
    with pytest.raises(UnreadableParameter, match=r"x\\xff"):
        for_the_pooler(asked(b"x\xff", b"1"))


def test_a_compute_gets_the_parameters_unchanged() -> None:
    """The compute itself reports what is wrong with them."""
    direct = asked(b"application_name", b"\xff", pooled=False)
    assert for_the_pooler(direct) is direct


def test_replication_through_a_pooler_is_refused() -> None:
    assert for_the_pooler(asked(b"replication", b"false")).parameters == {b"user": b"alice"}
    with pytest.raises(ReplicationThroughPooler):
        for_the_pooler(asked(b"replication", b"database"))


@pytest.mark.parametrize(
    ("options", "converted"),
    [
        (b"", {}),
        (rb"-c TimeZone=Asia/Tokyo", {b"TimeZone": b"Asia/Tokyo"}),
        (rb"-cDateStyle=ISO,\ DMY --client-encoding=UTF8", {
            b"DateStyle": b"ISO, DMY", b"client_encoding": b"UTF8",
        }),
    ],
)  # fmt: skip
def test_a_pooler_gets_the_settings_in_options_as_parameters(
    options: bytes, converted: dict[bytes, bytes]
) -> None:
    """PgBouncer before 1.20 refuses `options`."""
    found = for_the_pooler(asked(b"options", options))
    assert found.parameters == {b"user": b"alice", **converted}


def test_a_parameter_wins_over_the_same_one_in_options() -> None:
    parameters = {b"options": b"-c timezone=Asia/Tokyo", b"TimeZone": b"UTC"}
    found = for_the_pooler(Destination("ep-calm-river-000001", True, parameters))
    assert found.parameters == {b"TimeZone": b"UTC"}


UNKEPT = [b"-c work_mem=5MB", b"-c TimeZone=UTC -c statement_timeout=5", b"-c", b"-d 3", b"word"]


@pytest.mark.parametrize("options", UNKEPT)
def test_what_no_pooler_keeps_is_refused_at_its_host(options: bytes) -> None:
    with pytest.raises(OptionThroughPooler, match="unsupported startup parameter in options: "):
        for_the_pooler(asked(b"options", options))


@pytest.mark.parametrize(
    ("name", "value", "is_pooled"),
    [
        *((b"options", options, False) for options in UNKEPT),
        (b"options", b"-c TimeZone=UTC", True),
        (b"timezone", b"UTC", True),
        (b"extra_float_digits", b"3", True),
        (b"search_path", b"shop", False),
        (b"replication", b"database", False),
        (b"replication", b"off", True),
    ],
)
def test_at_the_plain_host_a_client_gets_a_session_if_it_needs_one(
    name: bytes, value: bytes, is_pooled: bool
) -> None:
    plain = asked(name, value, pooled=False)
    assert plain.with_pooler(True).pooled is is_pooled
    assert plain.with_pooler(False) is plain
    assert asked(name, value).with_pooler(True).pooled
