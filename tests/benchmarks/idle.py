"""`python -m tests.benchmarks.proxy --idle 10000`: the cost of idle clients for the proxy, and for
an active client beside them. Their compute is not Postgres, whose processes would use most of the
memory: it sends Postgres's greeting, and answers every query with one row."""

import argparse
import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop
from psycopg import pq

from controlplane.proxy.server import raise_descriptor_limit
from controlplane.proxy.wire import messages
from tests.support.waiting import wait_for

# The connections that one process opens; it has descriptors for twice as many.
CLIENTS_OF_A_PROCESS = 5_000
QUERIES = 2_000
_READY = messages.message(b"Z", b"I")
_STATUSES = {b"server_version": b"17.0", b"client_encoding": b"UTF8", b"DateStyle": b"ISO, MDY"}
_GREETING = b"".join(
    [
        messages.message(b"R", struct.pack("!I", 0)),
        *(messages.message(b"S", b"%s\0%s\0" % status) for status in _STATUSES.items()),
        messages.backend_key_data(1234, b"abcd"),
        _READY,
    ]
)
_ROW = b"".join(
    [
        messages.message(b"T", struct.pack("!H2sIHIhiH", 1, b"a\0", 0, 0, 23, 4, -1, 0)),
        messages.message(b"D", struct.pack("!HI1s", 1, 1, b"1")),
        messages.message(b"C", b"SELECT 1\0"),
        _READY,
    ]
)


@dataclass(frozen=True)
class Idleness:
    """Megabytes of all the proxy's processes, with shared pages counted once; seconds for a
    query."""

    memory: float
    median: float
    slow: float


def report(conninfo: str, proxy: int, *, clients: int) -> None:
    """Print the cost of so many idle clients for the proxy: the process with this number and its
    descendants, of which only the youngest serve."""
    before = look(conninfo, proxy)
    with idle_clients(conninfo, clients):
        beside = look(conninfo, proxy)
    for seen, idle in ((before, 0), (beside, clients)):
        print(
            f"  {idle:>6} idle: {seen.memory:7.1f} MB; SELECT 1 of another client:"
            f" median {seen.median * 1e6:.0f} µs, 99th of 100 {seen.slow * 1e6:.0f} µs"
        )
    each = (beside.memory - before.memory) / clients
    print(f"  {'':>6} each: {each * 1e3:7.1f} kB")


def verifier_of(password: str) -> str:
    """Return the password's verifier. The role does not matter."""
    connection = pq.PGconn.connect_start(b"host=/nowhere")
    return connection.encrypt_password(password.encode(), b"anybody", b"scram-sha-256").decode()


def look(conninfo: str, proxy: int) -> Idleness:
    process = psutil.Process(proxy)
    client = connect(conninfo)
    times = []
    for _ in range(QUERIES):
        began = time.perf_counter()
        assert client.exec_(b"SELECT 1").status == pq.ExecStatus.TUPLES_OK
        times.append(time.perf_counter() - began)
    client.finish()
    memory = sum(
        each.memory_full_info().pss for each in (process, *process.children(recursive=True))
    )
    return Idleness(memory / 1e6, statistics.median(times), sorted(times)[QUERIES * 99 // 100])


def connect(conninfo: str) -> pq.abc.PGconn:
    connection = pq.PGconn.connect(conninfo.encode())
    assert connection.status == pq.ConnStatus.OK, connection.error_message.decode()
    return connection


@contextmanager
def idle_clients(conninfo: str, count: int) -> Iterator[None]:
    shares = [
        min(CLIENTS_OF_A_PROCESS, count - opened)
        for opened in range(0, count, CLIENTS_OF_A_PROCESS)
    ]
    processes = [run("hold", conninfo, str(share), stdout=subprocess.PIPE) for share in shares]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"."
        yield
    finally:
        end(*processes)


@contextmanager
def running_greeter(directory: Path) -> Iterator[Path]:
    """Run the greeter in a directory of its own below this one. Yields its socket."""
    path = directory / "compute" / ".s.PGSQL.5432"
    path.parent.mkdir()
    process = run("greet", str(path))
    try:
        wait_for(path.exists, "the greeter to listen")
        yield path
    finally:
        end(process)


def run(*arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.benchmarks.idle", json.dumps(arguments)]
    return subprocess.Popen(command, **options)  # type: ignore[call-overload,no-any-return]


def end(*processes: "subprocess.Popen[bytes]") -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def hold(conninfo: str, count: str) -> None:
    """Open so many connections, print a line, and keep them open."""
    kept = [connect(conninfo) for _ in range(int(count))]
    print(end=".", flush=True)
    time.sleep(3_600)
    assert kept


class _Greeter(asyncio.Protocol):
    _has_greeted = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(messages.TERMINATE):
            self._transport.close()
        else:
            self._transport.write(_ROW if self._has_greeted else _GREETING)
            self._has_greeted = True


def greet(path: str) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(_Greeter, path, backlog=1024)
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    raise_descriptor_limit()
    parser = argparse.ArgumentParser()
    parser.add_argument("part", type=json.loads)
    match parser.parse_args().part:
        case ["greet", path]:
            greet(path)
        case ["hold", conninfo, count]:
            hold(conninfo, count)
