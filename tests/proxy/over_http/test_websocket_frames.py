"""WebSocket frames that a client of the Postgres protocol sends: fragments, pings, and frames that
violate the protocol."""

import struct

import pytest

from controlplane.proxy.directory.interface import ComputeAddress
from tests.proxy.conftest import ENDPOINT
from tests.proxy.http_client import RawHttp, request
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy
from tests.proxy.websocket_client import (
    UPGRADE,
    frame,
    password,
    query,
    startup,
)
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"select", opcode=1), 1003),
        (frame(b"\xff", opcode=1), 1007),
        (frame(b"x", masked=False), 1002),
        (frame(b"x", opcode=3), 1002),
        (frame(b"x", opcode=0), 1002),
        (frame(b"x" * 126, opcode=9), 1002),
        (b"\xc2\x80" + bytes(4), 1002),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1002),
        (b"\x82\xfe\x00\x05" + bytes(9), 1002),
        (b"\x82\x85" + bytes(9) + frame(b"x", opcode=0), 1002),
        (frame(b"x", opcode=9, final=False), 1002),
        (frame(b"\x03", opcode=8), 1002),
        (frame(struct.pack("!H", 1005), opcode=8), 1002),
        (frame(struct.pack("!H", 999), opcode=8), 1002),
        (frame(struct.pack("!H", 1000) + b"\xff", opcode=8), 1007),
        (frame(struct.pack("!H", 4000), opcode=8), 4000),
        (frame(struct.pack("!H", 1001), opcode=8), 1001),
    ],
)
def test_invalid_frames_end_the_connection(proxy: RunningProxy, sent: bytes, code: int) -> None:
    with RawHttp(proxy) as raw:
        raw.send(request(*UPGRADE, first="GET /v2 HTTP/1.1"))
        assert raw.answer()[0] == 101
        raw.send(sent)
        closing = raw.read(4)
        assert closing[0] == 0x88
        assert struct.unpack("!H", closing[2:4]) == (code,)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("asked", ["", "SELECT 1"])
@pytest.mark.parametrize("host", [ENDPOINT, f"{ENDPOINT}-pooler"])
def test_a_violation_that_arrives_with_data_ends_the_connection(
    proxy: RunningProxy,
    directory: MemoryDirectory,
    postgres: BarePostgres,
    host: str,
    asked: str,
    tls: bool,
) -> None:
    """Although the client sends nothing more and keeps the connection open."""
    directory.endpoints[ENDPOINT].pooler = ComputeAddress(postgres.socket, pooler_version=(1, 25))
    upgrade = request(*UPGRADE, first="GET /v2 HTTP/1.1").replace(b"api.", f"{host}.".encode())
    with RawHttp(proxy, alpn=[] if tls else None) as raw:
        raw.send(upgrade)
        assert raw.answer()[0] == 101
        login = startup(application_name="violator") + password()
        raw.send(frame(login + (query(asked) if asked else b"")) + frame(b"x", opcode=3))
        received = b""
        while part := raw.read(1):
            received += part
        # A client that has sent no query may be disconnected before it reaches its compute.
        assert not asked or b"application_name\0violator" in received
        wait_for(lambda: postgres.backends_of("violator") == 0, "the session to end")


def test_a_violation_that_arrives_with_a_statement_ends_the_connection(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    upgrade = request(*UPGRADE, first="GET /v2 HTTP/1.1").replace(b"api.", f"{ENDPOINT}.".encode())
    with RawHttp(proxy) as raw:
        raw.send(upgrade)
        assert raw.answer()[0] == 101
        raw.send(frame(startup(application_name="violator") + password() + query("SELECT 1")))
        wait_for(lambda: postgres.backends_of("violator") == 1, "the session")
        raw.send(frame(query("SELECT 2")) + frame(b"x", opcode=3))
        while raw.read(1):
            pass
        wait_for(lambda: postgres.backends_of("violator") == 0, "the session to end")


def test_a_message_may_come_in_fragments_with_pings_between(proxy: RunningProxy) -> None:
    login = startup() + password()
    with RawHttp(proxy) as raw:
        raw.send(
            request(*UPGRADE, first="GET /v2 HTTP/1.1").replace(b"api.", f"{ENDPOINT}.".encode())
        )
        assert raw.answer()[0] == 101
        raw.send(frame(login[:10], final=False) + frame(b"there?", opcode=9))
        assert raw.read(8) == b"\x8a\x06there?"
        raw.send(frame(b"", opcode=0, final=False) + frame(login[10:], opcode=0))
        assert raw.read(3)[2:] == b"R"


@pytest.mark.parametrize("tls", [False, True])
def test_many_small_frames_may_arrive_at_once(proxy: RunningProxy, tls: bool) -> None:
    upgrade = request(*UPGRADE, first="GET /v2 HTTP/1.1").replace(b"api.", f"{ENDPOINT}.".encode())
    text = query("SELECT 'last' /*" + "x" * 2000 + "*/")
    with RawHttp(proxy, alpn=[] if tls else None) as raw:
        raw.send(upgrade)
        assert raw.answer()[0] == 101
        for sent, awaited in (
            (startup() + password(), b"Z\0\0\0\5I"),
            (text, b"last"),
            (text * 3, b"last"),
        ):
            raw.send(b"".join(frame(bytes([byte])) for byte in sent))
            received = b""
            while awaited not in received:
                received += raw.read(1)
