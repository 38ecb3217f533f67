"""`python -m tests.benchmarks.proxy`: the cost of the proxy, compared with PgBouncer and a direct
connection.

The processes are real and run on this machine: one bare Postgres, and before its Unix socket a
PgBouncer in session mode and the proxy. They are measured alternately, in an order that changes
from round to round, so that other load affects all alike; each figure is a median. PgBouncer gives
every client a new server connection (`server_lifetime = 0`), as the proxy and a direct connection
do. Otherwise only its clients would find a warm Postgres.
"""

import argparse
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import uvloop

from controlplane.proxy.directory.interface import (
    ComputeAddress,
    PeerHost,
    RoleIdentity,
    Route,
    Tally,
    Traffic,
)
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.listeners import Handover, open_listeners
from controlplane.proxy.processes import run_processes
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import ProxySettings, Siblings
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from tests.benchmarks import idle
from tests.support.bare_postgres import (
    SUPERUSER,
    BarePostgres,
    Programs,
    bare_postgres,
    private_directory,
    unprivileged,
)
from tests.support.certificates import certificate
from tests.support.waiting import wait_for

ENDPOINT = "ep-bench-mark-000001"
PASSWORD = "a password for benchmarks"
CLIENTS = os.cpu_count() or 1
IDLE_CONNECTIONS = 1000
MOST_CONNECTIONS = 100_000
PGBOUNCER = """
[databases]
postgres = host={socket_directory} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {directory}/users
pool_mode = session
max_client_conn = 2000
default_pool_size = 500
server_lifetime = 0
client_tls_sslmode = allow
client_tls_cert_file = {directory}/localhost.pem
client_tls_key_file = {directory}/localhost.pem
log_connections = 0
log_disconnections = 0
logfile = {directory}/log
"""


@dataclass(frozen=True)
class Contestant:
    name: str
    conninfo: str
    # The process whose time is counted, with its descendants'; None for a direct connection.
    pid: int | None = None


@dataclass(frozen=True)
class Sample:
    rate: float
    # The microseconds that the process in between used for each transaction.
    cost: float


class BenchmarkDirectory:
    """One endpoint, always active."""

    def __init__(self, verifier: str, compute: Path) -> None:
        self._route = Route(ENDPOINT, 1, verifier)
        self._address = ComputeAddress(compute)
        self._traffic = Traffic()

    def counting(self, endpoint_id: str) -> AbstractContextManager[Tally]:
        return self._traffic.counting(endpoint_id, "")

    def note_refusal(
        self, route: Route | None, role: str, *, address: str, is_outside: bool = False
    ) -> None:
        raise AssertionError("every password here is right")

    async def route(self, endpoint_id: str, role: str) -> Route | None:
        return self._route if (endpoint_id, role) == (ENDPOINT, SUPERUSER) else None

    def recent(self, endpoint_id: str, role: str) -> tuple[Route, ComputeAddress] | None:
        return self._route, self._address

    async def route_of_any_role(self, endpoint_id: str) -> Route | None:
        return self._route if endpoint_id == ENDPOINT else None

    def peers(self) -> Mapping[str, PeerHost]:
        return {}

    async def read_peers(self) -> None:
        pass

    async def open_receiver(self) -> socket.socket | None:
        return None

    async def open_log_source(self, receiver_id: str, host_id: str) -> socket.socket | None:
        return None

    async def end_log_source(self, receiver_id: str) -> None:
        pass

    def lookup_time(self) -> float:
        return 0.0

    async def rules(self, endpoint_id: str, role: str) -> None:
        return None

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        return route.identity

    async def waited_for(self, endpoint_id: str) -> tuple[str, bool]:
        return "", False

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        return self._address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=1, help="of the proxy")
    parser.add_argument("--idle", type=int, help="only measure so many idle connections")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_proxy(**arguments.serve)
        return
    if arguments.idle:
        measure_idle(arguments.idle, arguments.processes)
        return
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        postgres = stack.enter_context(running_postgres(Programs(directory)))
        verifier = set_password(postgres)
        run_pgbench(direct(postgres).conninfo, "-i", "-s", "5", "-q")
        identity = directory / "tls"
        pgbouncer = stack.enter_context(running_pgbouncer(directory, postgres, verifier))
        proxy = stack.enter_context(
            running_proxy(identity, postgres.socket, verifier, arguments.processes)
        )
        contestants = {
            "plain": [direct(postgres), *pgbouncer("disable"), *proxy("disable")],
            "TLS": [*pgbouncer("require"), *proxy("require")],
        }
        for title, target, options in (
            ("pgbench -S: transactions per second", "1.0 of PgBouncer", []),
            ("pgbench -S -C: connections per second, SCRAM included", "0.9 of direct", ["-C"]),
        ):
            print(f"\n{title}; {CLIENTS} clients; the proxy's target: at least {target}")
            compete(contestants, arguments.rounds, ["-T", str(arguments.seconds), *options])
    measure_idle(IDLE_CONNECTIONS, arguments.processes)


def measure_idle(clients: int, processes: int) -> None:
    """Measure idle clients. Their compute is a program that only greets: see `idle`."""
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        compute = stack.enter_context(idle.running_greeter(directory))
        verifier = idle.verifier_of(PASSWORD)
        for sslmode in ("disable", "require"):
            with running_proxy(directory / "tls", compute, verifier, processes) as proxy:
                (contestant,) = proxy(sslmode)
                print(f"\n{contestant.name}, {processes} processes")
                assert contestant.pid is not None
                conninfo = f"{contestant.conninfo} password='{PASSWORD}'"
                idle.report(conninfo, contestant.pid, clients=clients)


def compete(contestants: dict[str, list[Contestant]], rounds: int, options: list[str]) -> None:
    everyone = [contestant for group in contestants.values() for contestant in group]
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in everyone}
    for _ in range(rounds):
        for contestant in random.sample(everyone, len(everyone)):
            samples[contestant.name].append(measure(contestant, options))
    print(f"  {'':<20}{'median':>9}{'best':>9}{'µs each':>9}  compared")
    for group in contestants.values():
        for contestant in group:
            rates = [sample.rate for sample in samples[contestant.name]]
            cost = statistics.median(sample.cost for sample in samples[contestant.name])
            print(
                f"  {contestant.name:<20}{statistics.median(rates):9.0f}{max(rates):9.0f}"
                f"{cost:9.1f}  {compared(contestant, group, samples)}"
            )


def compared(
    contestant: Contestant, group: list[Contestant], samples: dict[str, list[Sample]]
) -> str:
    """Return the median over the rounds of the ratio within a round, to each earlier one of the
    group."""
    ratios = []
    for other in group[: group.index(contestant)]:
        pairs = zip(samples[contestant.name], samples[other.name], strict=True)
        ratio = statistics.median(mine.rate / theirs.rate for mine, theirs in pairs)
        ratios.append(f"{ratio:.2f} of {other.name}")
    return ", ".join(ratios)


def measure(contestant: Contestant, options: list[str]) -> Sample:
    before = cpu_seconds(contestant.pid)
    output = run_pgbench(contestant.conninfo, "-S", "-c", str(CLIENTS), "-j", "2", *options)
    spent = cpu_seconds(contestant.pid) - before
    assert spent > 0 or contestant.pid is None, "the process that serves is not measured"
    rate = re.search(r"tps = ([\d.]+)", output)
    count = re.search(r"actually processed: (\d+)", output)
    assert rate
    assert count
    return Sample(float(rate[1]), spent * 1e6 / int(count[1]))


def run_pgbench(conninfo: str, *options: str) -> str:
    program = shutil.which("pgbench") or next(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    return subprocess.run(
        [program, "-n", *options, conninfo],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def cpu_seconds(pid: int | None) -> float:
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    # Only the youngest of the proxy's processes serve: a main and a supervising one are above them.
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


@contextmanager
def running_postgres(programs: Programs) -> Iterator[BarePostgres]:
    with bare_postgres(programs, port=free_port()) as postgres:
        postgres.start(listen_addresses="127.0.0.1", max_connections="1100")
        yield postgres


def set_password(postgres: BarePostgres) -> str:
    """Set the superuser's password, and return its verifier."""
    postgres.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{PASSWORD}'")
    ((verifier,),) = postgres.execute(
        "SELECT rolpassword FROM pg_authid WHERE rolname = %s", SUPERUSER
    )
    return str(verifier)


def direct(postgres: BarePostgres) -> Contestant:
    return Contestant("direct", conninfo(postgres.port, "disable"))


@contextmanager
def running_pgbouncer(
    directory: Path, postgres: BarePostgres, verifier: str
) -> Iterator[Callable[[str], list[Contestant]]]:
    port = free_port()
    certificate(directory, "localhost").chmod(0o644)
    (directory / "users").write_text(f'"{SUPERUSER}" "{verifier}"\n')
    (directory / "pgbouncer.ini").write_text(
        PGBOUNCER.format(
            socket_directory=postgres.directory,
            port=postgres.port,
            listen_port=port,
            directory=directory,
        )
    )
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    with running([program, "-q", directory / "pgbouncer.ini"], port, **unprivileged()) as pid:
        yield lambda sslmode: [
            Contestant(f"pgbouncer {sslmode}", conninfo(port, sslmode), pid),
        ]


@contextmanager
def running_proxy(
    identity: Path, compute: Path, verifier: str, processes: int
) -> Iterator[Callable[[str], list[Contestant]]]:
    port = free_port()
    options = {
        "port": port,
        "processes": processes,
        "identity": str(identity),
        "verifier": verifier,
        "compute": str(compute),
    }
    command = [sys.executable, "-m", "tests.benchmarks.proxy", "--serve", json.dumps(options)]
    with running(command, port) as pid:
        yield lambda sslmode: [
            Contestant(
                f"proxy {sslmode}", conninfo(port, sslmode, options=f"endpoint={ENDPOINT}"), pid
            )
        ]


def serve_proxy(*, port: int, processes: int, identity: str, verifier: str, compute: str) -> None:
    """Run only the proxy, in the processes that are measured."""
    tls = IssuingIdentity(load_or_create_authority(Path(identity)), "localhost")
    directory = BenchmarkDirectory(verifier, Path(compute))
    settings = ProxySettings(
        domains=["localhost"],
        secret=b"benchmark",
        port=port,
        limits=ConnectionLimits(*[MOST_CONNECTIONS] * 4),
    )
    handover = Handover(Path(identity), linger_within=0).take_over()
    handover.listeners = open_listeners(settings)

    def run(number: int, ready: Callable[[], object]) -> None:
        siblings = Siblings(number, Path(identity), handover.counts)
        chosen = replace(settings, siblings=siblings)
        uvloop.run(serve(chosen, ready))

    async def serve(chosen: ProxySettings, ready: Callable[[], object]) -> None:
        await Proxy(chosen, directory, tls).serve(handover.listeners, started=ready)

    run_processes(processes, run, handover=handover)


@contextmanager
def running(command: list[Any], port: int, **options: Any) -> Iterator[int]:
    process = subprocess.Popen(command, **options)
    try:
        wait_for(lambda: is_open(port), f"{command[0]} to listen")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def conninfo(port: int, sslmode: str, **parameters: str) -> str:
    given: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": SUPERUSER, **parameters}
    return psycopg.conninfo.make_conninfo(dbname="postgres", sslmode=sslmode, **given)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
