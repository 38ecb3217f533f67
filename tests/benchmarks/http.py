"""`python -m tests.benchmarks.http`: the cost of a query over HTTP, compared with one in a session
of psycopg through the same proxy; through PgBouncer (`-pooler`); and the memory of 1,000 idle
WebSockets.

The processes are real and run on this machine: a bare Postgres, a PgBouncer in transaction mode,
and the proxy in one process. The measurements alternate; each figure is a median over the rounds.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
import uvloop
from websockets.sync.client import connect

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from tests.benchmarks.proxy import (
    ENDPOINT,
    IDLE_CONNECTIONS,
    PASSWORD,
    BenchmarkDirectory,
    conninfo,
    cpu_seconds,
    free_port,
    running,
    running_postgres,
    set_password,
)
from tests.support.bare_postgres import SUPERUSER, Programs, private_directory, unprivileged
from tests.support.waiting import wait_for

CLIENTS = 8
QUERY = "SELECT 1 AS one"
PGBOUNCER = """
[databases]
postgres = host={socket_directory} port={port}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {directory}
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
max_client_conn = 2000
log_connections = 0
log_disconnections = 0
logfile = {directory}/log
"""
Ask = Callable[[], None]


class PooledDirectory(BenchmarkDirectory):
    """One endpoint with a pooler, always active."""

    def __init__(self, verifier: str, compute: Path, pooler: Path) -> None:
        super().__init__(verifier, compute)
        self._pooler = ComputeAddress(pooler)

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        return self._pooler if pooled else await super().wake(endpoint_id, pooled=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(**arguments.serve))
        return
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        postgres = stack.enter_context(running_postgres(Programs(directory)))
        verifier = set_password(postgres)
        pooler = stack.enter_context(
            running_pgbouncer(directory, postgres.directory, postgres.port)
        )
        port = free_port()
        options = {
            "port": port,
            "verifier": verifier,
            "compute": str(postgres.socket),
            "pooler": str(pooler),
            "identity": str(directory / "tls"),
        }
        command = [sys.executable, "-m", "tests.benchmarks.http", "--serve", json.dumps(options)]
        pid = stack.enter_context(running(command, port))
        ways = {
            "psycopg, a session each": lambda: by_psycopg(port),
            "HTTP": lambda: by_http(port, ENDPOINT),
            "HTTP, -pooler": lambda: by_http(port, f"{ENDPOINT}-pooler"),
        }
        print(f"{QUERY!r}; the proxy in one process; targets of HTTP: p50 at most 0.6 ms, at least")
        print("3,000 requests a second of 8 clients")
        print(f"  {'':<26}{'p50 ms':>9}{'8 clients/s':>13}{'µs each':>9}")
        alone: dict[str, list[float]] = {way: [] for way in ways}
        together: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way, open_one in ways.items():
                alone[way].append(latency(open_one, arguments.seconds))
                together[way].append(rate(open_one, arguments.seconds, pid))
        for way in ways:
            rates, costs = zip(*together[way], strict=True)
            print(
                f"  {way:<26}{statistics.median(alone[way]) * 1000:9.2f}"
                f"{statistics.median(rates):13.0f}{statistics.median(costs) * 1e6:9.0f}"
            )
        print(f"{IDLE_CONNECTIONS} idle WebSockets: {idle_websockets(port, pid):.1f} MB more")


def by_psycopg(port: int) -> Ask:
    connection = psycopg.connect(
        conninfo(port, "disable", options=f"endpoint={ENDPOINT}"),
        password=PASSWORD,
        autocommit=True,
    )

    def ask() -> None:
        connection.execute(QUERY).fetchall()

    return ask


def by_http(port: int, name: str) -> Ask:
    """Return a client with almost no cost of its own."""
    line = socket.create_connection(("127.0.0.1", port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = json.dumps({"query": QUERY, "params": []})
    named = f"postgresql://{SUPERUSER}:{quote(PASSWORD)}@{name}.localhost/postgres"
    asked = (
        "POST /sql HTTP/1.1\r\nHost: localhost\r\n"
        f"Neon-Connection-String: {named}\r\nNeon-Raw-Text-Output: true\r\n"
        f"Neon-Array-Mode: true\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    def ask() -> None:
        line.sendall(asked)
        answer = line.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert answer.endswith(b"}"), answer

    return ask


def latency(open_one: Callable[[], Ask], seconds: float) -> float:
    ask = open_one()
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def rate(open_one: Callable[[], Ask], seconds: float, pid: int) -> tuple[float, float]:
    """Return the requests per second, and the proxy's processor seconds for each."""
    asks = [open_one() for _ in range(CLIENTS)]
    counts = [0] * CLIENTS
    end = time.monotonic() + seconds

    def go_on(number: int) -> None:
        while time.monotonic() < end:
            asks[number]()
            counts[number] += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(CLIENTS)]
    spent = cpu_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, (cpu_seconds(pid) - spent) / sum(counts)


def idle_websockets(port: int, pid: int) -> float:
    """Return how many MB the proxy uses for them, each with a session of its own."""
    parameters = {b"user": SUPERUSER.encode(), b"database": b"postgres"}
    start = messages.startup_message(parameters) + messages.message(b"p", PASSWORD.encode() + b"\0")
    before = psutil.Process(pid).memory_info().rss
    opened = []
    for _ in range(IDLE_CONNECTIONS):
        line = connect(
            f"ws://{ENDPOINT}.localhost:{port}/v2",
            sock=socket.create_connection(("127.0.0.1", port)),
            compression=None,
            proxy=None,
            legacy=True,
        )
        line.send(start)
        answer = b""
        while not answer.endswith(b"Z\0\0\0\5I"):
            said = line.recv()
            assert isinstance(said, bytes)
            answer += said
        opened.append(line)
    held = (psutil.Process(pid).memory_info().rss - before) / 1e6
    for line in opened:
        line.close()
    return held


@contextmanager
def running_pgbouncer(directory: Path, sockets: Path, port: int) -> Iterator[Path]:
    (directory / "users").write_text(f'"{SUPERUSER}" ""\n')
    (directory / "pooler.ini").write_text(
        PGBOUNCER.format(socket_directory=sockets, port=port, directory=directory)
    )
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    process = subprocess.Popen([program, "-q", directory / "pooler.ini"], **unprivileged())
    path = directory / ".s.PGSQL.6432"
    try:
        wait_for(path.exists, "PgBouncer to listen")
        yield path
    finally:
        process.kill()
        process.wait()


async def serve(*, port: int, verifier: str, compute: str, pooler: str, identity: str) -> None:
    tls = IssuingIdentity(load_or_create_authority(Path(identity)), "localhost")
    directory = PooledDirectory(verifier, Path(compute), Path(pooler))
    settings = ProxySettings(domains=["localhost"], secret=b"benchmark", port=port)
    await Proxy(settings, directory, tls).serve()


if __name__ == "__main__":
    main()
