"""Which of a client's start-up parameters a pooler gets."""

import pytest

from controlplane.proxy.wire.destination import Destination, for_the_pooler
from controlplane.proxy.wire.errors import ReplicationThroughPooler, UnreadableParameter


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
