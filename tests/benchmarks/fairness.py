"""`python -m tests.benchmarks.fairness [api] [connect] [sql]`: how long one account waits, alone
and beside the crowd of another account: for the API, for new connections, for SQL over HTTP.

Alone and crowded are measured alternately in one run; each figure is the median of all its samples.
The crowd is a process of its own, which shares only the processor with the measured client.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.filling import add_operations, analyze
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS, SAMPLES = 5, 20
# Threads of the crowd. None waits between two of its requests.
CROWDS = {"api": 12, "connect": 60, "sql": 60}
OPERATIONS = 1_000


@dataclass(frozen=True)
class Account:
    """One of the two accounts, with what it does."""

    api_url: str
    key: str
    project_id: str
    uri: str
    host: str
    port: int

    def headers(self) -> dict[str, str]:
        return {
            "Host": "localhost",
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
        }

    def conninfo(self) -> str:
        """Connect with TLS, as a remote client does, to the endpoint that SNI names."""
        return psycopg.conninfo.make_conninfo(
            self.uri, hostaddr="127.0.0.1", host=self.host, options=""
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    parser.add_argument("--account", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.crowd:
        be_crowd(arguments.crowd, Account(**arguments.account))
        return
    with new_state_dir() as state_dir, running_stack(state_dir, PERCH_API_RATE_LIMIT="0") as stack:
        one, many = new_account(stack), new_account(stack)
        analyze(stack)
        print(f"{'p50 ms of one account':<24}{'alone':>8}{'crowded':>9}{'times':>7}{'crowd/s':>9}")
        for part in arguments.parts or CROWDS:
            compare(part, one, many)


def new_account(stack: Stack) -> Account:
    client = stack.client()
    created = client.new_project()
    project_id = created["project"]["id"]
    add_operations(stack, project_id, OPERATIONS)
    uri = created["connection_uris"][0]["connection_uri"]
    host = f"{created['endpoints'][0]['id']}.localhost"
    return Account(client.api_url, client.key, project_id, uri, host, stack.proxy_port)


def compare(part: str, one: Account, many: Account) -> None:
    ask = ASKING[part](one)
    alone: list[float] = []
    crowded: list[float] = []
    rates = []
    for _ in range(ROUNDS):
        alone += measure(ask)
        with crowd(part, many) as crowds:
            crowded += measure(ask)
        rates += crowds
    mine, theirs = statistics.median(alone), statistics.median(crowded)
    rate = statistics.median(rates)
    print(f"{part:<24}{mine:>8.1f}{theirs:>9.1f}{theirs / mine:>7.2f}{rate:>9.0f}", flush=True)


def measure(ask: Callable[[], None]) -> list[float]:
    """Return milliseconds. The first request is not counted, because it may have to connect."""
    ask()
    times = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1000)
    return times


@contextmanager
def crowd(part: str, account: Account) -> Iterator[list[float]]:
    told = json.dumps(asdict(account))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.fairness", "--crowd", part, "--account", told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    rate: list[float] = []
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "here\n"
        yield rate
    finally:
        process.stdin.close()
        rate.append(float(process.stdout.read()))
        process.wait(30)


def be_crowd(part: str, account: Account) -> None:
    """Send requests until standard input ends, and print how many per second."""
    ends = threading.Event()
    counts = [0] * CROWDS[part]

    def go_on(number: int) -> None:
        ask = ASKING[part](account)
        while not ends.is_set():
            with suppress(psycopg.Error, AssertionError):
                ask()
                counts[number] += 1

    threads = [threading.Thread(target=go_on, args=[number]) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    while sum(counts) < len(counts):
        time.sleep(0.01)
    began, before = time.perf_counter(), sum(counts)
    print("here", flush=True)
    sys.stdin.read()
    print((sum(counts) - before) / (time.perf_counter() - began))
    sys.stdout.flush()
    ends.set()
    for thread in threads:
        thread.join()


def asking(
    url: str, method: str, path: str, headers: Mapping[str, str], body: object = None
) -> Callable[[], None]:
    """Return a function that sends the request over an open connection, at almost no cost of its
    own."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(sent)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + sent
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask() -> None:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        head, _, answer = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head + answer
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(answer) < size:
            answer += connection.recv(65536)

    return ask


def reads(account: Account) -> Callable[[], None]:
    path = f"/api/v2/projects/{account.project_id}/operations?limit=100"
    return asking(account.api_url, "GET", path, account.headers())


def connects(account: Account) -> Callable[[], None]:
    conninfo = account.conninfo()
    return lambda: psycopg.connect(conninfo).close()


def asks_sql(account: Account) -> Callable[[], None]:
    headers = {"Host": account.host, "Neon-Connection-String": account.uri}
    query = {"query": "SELECT 1", "params": []}
    return asking(f"http://127.0.0.1:{account.port}", "POST", "/sql", headers, query)


ASKING: dict[str, Callable[[Account], Callable[[], None]]] = {
    "api": reads,
    "connect": connects,
    "sql": asks_sql,
}


if __name__ == "__main__":
    main()
