"""What a pooler cannot do: named prepared statements, if it is old, and LISTEN."""

import time
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.pooling.statement_refusal import StatementRefusal
from controlplane.proxy.wire.certificates import IssuingIdentity
from controlplane.proxy.wire.messages import error_fields, message
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.pooling.test_conversation import BIND, EXECUTE, FLUSH, SYNC, parse, query
from tests.proxy.protocol.test_messages import CUTS, cut_up
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres

OLD = (1, 18)


@pytest.fixture
def proxy(
    identity: IssuingIdentity, directory: MemoryDirectory, postgres: BarePostgres
) -> Iterator[RunningProxy]:
    """A proxy with an old pooler. A Postgres takes the pooler's place and answers everything
    else."""
    directory.endpoints[ENDPOINT].pooler = ComputeAddress(postgres.socket, pooler_version=OLD)
    with running_proxy(identity, directory) as proxy:
        yield proxy


def connect(proxy: RunningProxy) -> "psycopg.Connection[tuple[object, ...]]":
    password = PASSWORDS["alice"]
    return proxy.connect(f"{ENDPOINT}-pooler", user="alice", password=password)


def test_the_client_gets_instructions_and_continues(proxy: RunningProxy) -> None:
    with connect(proxy) as client:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            client.execute("SELECT %s::int", [1], prepare=True)
        assert "PgBouncer older than 1.21" in str(refused.value)
        assert "prepare_threshold=None" in str(refused.value.diag.message_hint)
        assert client.execute("SELECT %s::int", [1]).fetchone() == (1,)


def test_an_open_transaction_fails(proxy: RunningProxy) -> None:
    with connect(proxy) as client:
        client.execute("BEGIN")
        client.execute("CREATE TEMPORARY TABLE half (a int)")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute("SELECT 1", prepare=True)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("SELECT 1")
        client.execute("COMMIT")
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("TABLE half")


@pytest.mark.parametrize("end", [SYNC, FLUSH])
def test_the_refusal_is_immediate_and_in_order(proxy: RunningProxy, end: bytes) -> None:
    """A client that sends only a Flush also gets it, and does not wait."""
    client = RawClient.start_log_in(
        proxy.port, f"{ENDPOINT}-pooler", user="alice", password=PASSWORDS["alice"]
    )
    while client.read_message()[0] != b"Z":
        pass
    unnamed = parse(b"", b"SELECT 42")
    client.socket.sendall(
        unnamed + BIND + EXECUTE + parse(b"s", b"SELECT 1" + b" " * 200_000) + BIND + EXECUTE + end
    )
    kinds = []
    while True:
        kind, payload = client.read_message()
        kinds.append(kind)
        if kind == b"E":
            break
    assert kinds == [b"1", b"2", b"D", b"C", b"E"]
    assert error_fields(payload)["C"] == "0A000"
    if end == FLUSH:
        client.socket.sendall(SYNC)
    assert client.read_message() == (b"Z", b"I")
    client.socket.sendall(query(b"SELECT 7"))
    assert client.read_message()[0] == b"T"
    client.socket.close()


@given(CUTS)
def test_forwarded_messages_do_not_depend_on_how_bytes_are_split(cuts: list[int]) -> None:
    sent = query() + parse(b"one") + BIND + SYNC + parse() + parse(b"two", b"x" * 300) + SYNC
    refused = StatementRefusal(refuses_names=True)
    on = b"".join(refused.sent(piece) for piece in cut_up(sent, cuts))
    assert on == StatementRefusal(refuses_names=True).sent(sent)
    assert not refused.is_within
    bad = StatementRefusal(refuses_names=True).sent(parse(b"s"))
    assert on == query() + bad + BIND + SYNC + parse() + bad + SYNC


@given(CUTS)
def test_answers_do_not_depend_on_how_bytes_are_split(cuts: list[int]) -> None:
    refusal = StatementRefusal(refuses_names=True)
    said = refusal.sent(parse(b"s"))[6:-3]
    other = message(b"E", b"SERROR\0C42601\0Msomething else\0\0")
    answers = other + message(b"D", said) + message(b"E", b"SERROR\0M" + said + b"\0\0")
    on = b"".join(refusal.answered(piece) for piece in cut_up(answers, cuts))
    assert on.startswith(other + message(b"D", said) + b"E")
    assert b"C0A000\0" in on


def test_an_incomplete_parse_message_affects_no_other_message() -> None:
    refusal = StatementRefusal(refuses_names=True)
    cut_short = message(b"P", b"a")
    assert refusal.sent(cut_short + query()).endswith(query())


LISTENS = (
    b"LISTEN orders",
    b'\n listen"orders"',
    b"-- now\n/* to; 'it */ Listen orders;",
    b"BEGIN; LISTEN orders; COMMIT",
    b";;LISTEN orders",
)
LISTENS_NOT = (
    b"SELECT 'a; LISTEN b'",
    b"-- ; LISTEN a\nSELECT 1",
    b"/* ; LISTEN a */ SELECT 1",
    b"DO $$ BEGIN; LISTEN a; END $$",
    b"SELECT listen FROM radio",
    b"listener",
    b"UNLISTEN orders",
    b"NOTIFY orders",
    b"",
)


@given(CUTS)
def test_a_listen_is_refused_however_its_bytes_are_split(cuts: list[int]) -> None:
    for text in LISTENS:
        for sent in (query(text + b" " * 3000), parse(b"s", text), parse(b"", text)):
            refusal = StatementRefusal(refuses_names=False)
            on = b"".join(refusal.sent(piece) for piece in cut_up(sent + BIND + query(), cuts))
            assert b"0A000" in on
            assert text not in on
            assert on.endswith(BIND + query())
            assert not refusal.is_within


def test_other_statements_go_on_unchanged() -> None:
    refusal = StatementRefusal(refuses_names=False)
    for text in LISTENS_NOT:
        sent = query(text) + parse(b"s", text) + message(b"d", b"LISTEN orders")
        assert refusal.sent(sent) == sent


@pytest.mark.parametrize("piece", [b";", b"/**/", b"/*", b"--\n", b" ", b"; /*x*/ "])
def test_no_statement_takes_long_to_be_read(piece: bytes) -> None:
    began = time.process_time()
    for _ in range(100):
        StatementRefusal(refuses_names=False).sent(query(piece * (2000 // len(piece)) + b"x"))
    assert time.process_time() - began < 1
