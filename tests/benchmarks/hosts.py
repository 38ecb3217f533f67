"""`python -m tests.benchmarks.hosts [hops] [moves] [placement] [rest] [region]`: what several hosts
cost.

`moves` measures how long writes pause while a project moves, `placement` spreads 1,000 projects
over five hosts of different size, `rest` measures three hosts with 10,000 idle projects each, and
`region` compares the statements of a small region with those of one with 100 hosts and a million
endpoints; their modules say how.

hops: the cost of a connection that a proxy passes on to another host, compared with one to the
proxy of the endpoint's own host. The processes are real and run on this machine: one bare Postgres,
and two proxies that hold each other for hosts of one region. The clients use TLS. Both ways are
measured alternately, in an order that changes from round to round; each ratio is the median of the
ratios within a round. The network between the hosts is loopback, so its own latency is not
included.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import uvloop

from controlplane.proxy.directory.interface import PeerHost
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from controlplane.proxy.wire.peer_tls import PeerCertificate, new_peer_certificate
from tests.benchmarks import large_region, placed_projects, resting_hosts
from tests.benchmarks.moves import measure_moves
from tests.benchmarks.proxy import (
    CLIENTS,
    ENDPOINT,
    PASSWORD,
    BenchmarkDirectory,
    conninfo,
    free_port,
    run_pgbench,
    running,
    running_postgres,
    set_password,
)
from tests.support.bare_postgres import Programs, private_directory

OWN, OTHER = "own", "other"
# Of the COPY in each direction.
COPIED_ROWS = 100_000
ROW = "x" * 999
WARM_UP = 200


@dataclass(frozen=True)
class Measure:
    name: str
    # Measures one way, given its connection string. A larger result is better for rates only.
    run: Callable[[str], float]
    unit: str
    # The ratio to a connection to the endpoint's own host that is to be reached.
    target: str


class HostDirectory(BenchmarkDirectory):
    """The directory of one of the two hosts. The endpoint is on the host OWN."""

    def __init__(self, verifier: str, compute: Path, host: str, peer: PeerHost) -> None:
        is_elsewhere = host != OWN
        elsewhere = "the other host" if is_elsewhere else None
        super().__init__(verifier, compute, host_id=OWN, elsewhere=elsewhere)
        self._peers = {peer.id: peer}

    def peers(self) -> Mapping[str, PeerHost]:
        return self._peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement of pgbench")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--moves", type=int, default=1, help="there and back, of each size")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(**arguments.serve)
        return
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for name, part in PARTS.items():
        if name in arguments.parts or not arguments.parts:
            part(arguments)


def hops(arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        postgres = stack.enter_context(running_postgres(Programs(directory)))
        verifier = set_password(postgres)
        run_pgbench(conninfo(postgres.port, "disable"), "-i", "-s", "5", "-q")
        ways = stack.enter_context(two_hosts(directory, postgres.socket, verifier))
        load = ["-S", "-c", str(CLIENTS), "-j", "2", "-T", str(arguments.seconds)]
        connects = [*load, "-C"]
        for measure in (
            Measure("SELECT 1, one client", latency, "ms", "≤ 1.5"),
            Measure("pgbench -S, 8 clients", lambda way: rate(way, load), "/s", "≥ 0.5"),
            Measure("COPY to the client", copy_out, "MB/s", "≥ 0.9"),
            Measure("COPY from the client", copy_in, "MB/s", "≥ 0.9"),
            Measure("pgbench -S -C, 8 clients", lambda way: rate(way, connects), "/s", "none"),
        ):
            compare(measure, ways, arguments.rounds)


def compare(measure: Measure, ways: Mapping[str, str], rounds: int) -> None:
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in random.sample(list(ways), len(ways)):
            found[way].append(measure.run(ways[way]))
    ratio = statistics.median(b / a for a, b in zip(found[OWN], found[OTHER], strict=True))
    own, other = (statistics.median(found[way]) for way in (OWN, OTHER))
    print(
        f"{measure.name:<26} own host {own:9.2f} {measure.unit:<5} passed on {other:9.2f}"
        f" {measure.unit:<5} ratio {ratio:5.2f}  target {measure.target}",
        flush=True,
    )


def latency(way: str) -> float:
    """Return the median milliseconds of a SELECT 1."""
    times = []
    with psycopg.connect(way, password=PASSWORD, autocommit=True) as connection:
        for number in range(WARM_UP + 2000):
            began = time.perf_counter()
            connection.execute("SELECT 1").fetchone()
            if number >= WARM_UP:
                times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def rate(way: str, options: list[str]) -> float:
    """Return the transactions per second."""
    output = run_pgbench(way, *options)
    return float(output.rpartition("tps = ")[2].split()[0])


def copy_out(way: str) -> float:
    """Return the megabytes per second that the client receives."""
    query = f"COPY (SELECT '{ROW}' FROM generate_series(1, {COPIED_ROWS})) TO STDOUT"
    return _rate_of_psql(way, query)


def copy_in(way: str) -> float:
    """Return the megabytes per second that the client sends. The server discards the rows."""
    statements = [
        "CREATE TEMPORARY TABLE sink (line text)",
        "CREATE FUNCTION pg_temp.discard() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER discard BEFORE INSERT ON sink FOR EACH ROW"
        " EXECUTE FUNCTION pg_temp.discard()",
    ]
    lines = f"{ROW}\n".encode() * 100
    with psycopg.connect(way, password=PASSWORD) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        began = time.perf_counter()
        with connection.cursor().copy("COPY sink FROM STDIN") as copy:
            for _ in range(COPIED_ROWS // 100):
                copy.write(lines)
        return COPIED_ROWS / 1000 / (time.perf_counter() - began)


def _rate_of_psql(way: str, query: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        ["psql", "-Xqc", query, way],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return COPIED_ROWS / 1000 / (time.perf_counter() - began)


@contextmanager
def two_hosts(directory: Path, compute: Path, verifier: str) -> Iterator[Mapping[str, str]]:
    """Run the proxies of both hosts. Returns the connection strings through each of them."""
    ports = {OWN: free_port(), OTHER: free_port()}
    certificates = {host: new_peer_certificate(datetime.now(UTC)) for host in ports}
    with ExitStack() as stack:
        for host, peer in ((OWN, OTHER), (OTHER, OWN)):
            certificate = certificates[host]
            options: dict[str, Any] = {
                "host": host,
                "port": ports[host],
                "certificate": [certificate.certificate, certificate.key],
                "peer": [peer, "127.0.0.1", ports[peer], certificates[peer].certificate],
                "identity": str(directory / "tls"),
                "verifier": verifier,
                "compute": str(compute),
            }
            command = [sys.executable, "-m", "tests.benchmarks.hosts"]
            stack.enter_context(running([*command, "--serve", json.dumps(options)], ports[host]))
        yield {
            host: conninfo(port, "require", host=f"{ENDPOINT}.localhost", hostaddr="127.0.0.1")
            for host, port in ports.items()
        }


def serve(
    *,
    host: str,
    port: int,
    certificate: list[str],
    peer: list[Any],
    identity: str,
    verifier: str,
    compute: str,
) -> None:
    """Run the proxy of one host, in the process that is measured."""
    tls = IssuingIdentity(load_or_create_authority(Path(identity)), "localhost")
    directory = HostDirectory(verifier, Path(compute), host, PeerHost(*peer))
    settings = ProxySettings(domains=["localhost"], secret=b"benchmark", port=port, host_id=host)

    async def run() -> None:
        await Proxy(settings, directory, tls, PeerCertificate(*certificate)).serve()

    uvloop.run(run())


PARTS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "hops": hops,
    "moves": lambda arguments: measure_moves(arguments.megabytes, arguments.moves),
    "placement": lambda _: placed_projects.main(),
    "rest": lambda _: resting_hosts.main(),
    "region": lambda _: large_region.main(),
}

if __name__ == "__main__":
    main()
