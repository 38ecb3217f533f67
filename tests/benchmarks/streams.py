"""`python -m tests.benchmarks.streams`: the cost of 1,000 open streams of events for the API.

It measures the API's memory, the time of other requests, and how long an event takes from its
commit to its readers.
"""

import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from tests.support.client import Client
from tests.support.processes import processes_of
from tests.support.stack import Stack, new_state_dir, running_stack

# As many streams of each account as are allowed.
ACCOUNTS, EACH = 10, 100
REQUESTS, EVENTS = 400, 50

WRITE = """
INSERT INTO controlplane_event (account_id, type, operation_ids, actor_type, actor_name, address,
    at, summary, changes)
SELECT account_id, 'project.updated', '{}', 'user', '', '', now(), %s, '{}'
FROM controlplane_apikey WHERE digest = encode(sha256(%s::bytea), 'hex')
"""


@dataclass
class Readers:
    """Many streams that are read by one thread."""

    opened: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    # When each stream received the event, by the event's mark, in seconds of the monotonic clock.
    arrivals: dict[bytes, list[float]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def open(self, client: Client) -> None:
        address = urlsplit(client.api_url)
        connection = socket.create_connection((address.hostname, address.port), timeout=30)
        head = "GET /api/v2/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        connection.sendall(f"{head}Authorization: Bearer {client.key}\r\n\r\n".encode())
        head_of_answer = b""
        while b"retry: " not in head_of_answer:
            piece = connection.recv(1 << 16)
            assert piece, head_of_answer
            head_of_answer += piece
        connection.setblocking(False)
        self.opened.register(connection, selectors.EVENT_READ)

    def read(self) -> None:
        while not self.over.is_set():
            for key, _ in self.opened.select(timeout=0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                piece, now = connection.recv(1 << 16), time.monotonic()
                assert piece, "a stream has ended"
                for mark in [mark for mark in self.arrivals if mark in piece]:
                    self.arrivals[mark].append(now)

    def close(self) -> None:
        for key in list(self.opened.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


@contextmanager
def open_streams(clients: list[Client]) -> Iterator[Readers]:
    """Open so many streams of each client, and wait until all have begun."""
    readers = Readers()
    for client in clients:
        for _ in range(EACH):
            readers.open(client)
    thread = threading.Thread(target=readers.read)
    thread.start()
    try:
        yield readers
    finally:
        readers.over.set()
        thread.join()
        readers.close()


def run(stack: Stack) -> None:
    """Measure the service, and print the result. The service should be new, because memory that was
    used before is reused."""
    clients = [stack.client() for _ in range(ACCOUNTS)]
    project = clients[0].new_project(name="benchmark")["project"]["id"]
    path = f"/projects/{project}/operations?limit=10"
    process = processes_of(stack, "api")[-1]
    for client in clients:
        time_requests(client, path if client is clients[0] else "/projects")
    memory, quiet = used(process), time_requests(clients[0], path)
    with open_streams(clients) as readers:
        count = ACCOUNTS * EACH
        cost = used(process) - memory
        print(f"{count} streams cost {cost / 2**20:.0f} MB, {cost / count / 1024:.0f} kB each")
        report("GET without streams", quiet)
        among = time_requests(clients[0], path)
        report("GET with streams", among)
        ratio = statistics.median(among) / statistics.median(quiet)
        print(f"with streams a request takes {ratio:.2f} times as long (p50)")
        over = threading.Event()
        writing = threading.Thread(target=keep_writing, args=(stack, clients[1], over))
        writing.start()
        busy = time_requests(clients[0], path)
        over.set()
        writing.join()
        report(f"GET, {EACH} told 5 times a second", busy)
        first, last = time_events(stack, clients[2], readers)
        report("commit to the first reader", first)
        report(f"commit to the last of {EACH}", last)
        print(f"memory at the end: {(used(process) - memory) / 2**20:.0f} MB more than at first")


def used(process: psutil.Process) -> int:
    """Return the bytes that only this process uses."""
    return int(process.memory_full_info().uss)


def time_requests(client: Client, path: str) -> list[float]:
    """Return the milliseconds of each request."""
    times = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        assert client.call("GET", path).ok
        times.append((time.perf_counter() - began) * 1000)
    return times


def keep_writing(stack: Stack, client: Client, over: threading.Event) -> None:
    with stack.database() as connection:
        while not over.wait(0.2):
            connection.execute(WRITE, ["meanwhile", client.key])


def time_events(stack: Stack, client: Client, readers: Readers) -> tuple[list[float], list[float]]:
    """Return the milliseconds from each event's commit to its first reader, and to its last."""
    first, last = [], []
    with stack.database() as connection:
        for number in range(EVENTS):
            mark = f"mark {number}.".encode()
            readers.arrivals[mark] = []
            connection.execute(WRITE, [mark.decode(), client.key])
            committed = time.monotonic()
            arrivals = readers.arrivals[mark]
            while len(arrivals) < EACH:
                time.sleep(0.001)
            first.append((min(arrivals) - committed) * 1000)
            last.append((max(arrivals) - committed) * 1000)
            del readers.arrivals[mark]
    return first, last


def report(name: str, times: list[float]) -> None:
    times = sorted(times)
    p95 = times[round(0.95 * (len(times) - 1))]
    print(f"{name:<32} p50 {statistics.median(times):7.2f} ms   p95 {p95:7.2f} ms")


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        run(stack)


if __name__ == "__main__":
    main()
