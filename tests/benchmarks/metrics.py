"""`python -m tests.benchmarks.metrics`: what keeping figures costs a wake and a transaction.

Two services run side by side, one with PERCH_METRICS_LISTEN=off. Each round measures both services
and alternates which goes first, so both see the same machine load. The cost is the median of the
ratios of paired measurements. Scraping is included: the figures are read every fifteen seconds, as
Prometheus does.

The cost of the figures per wake is smaller than the variation between wakes. So the calls that
record one wake, in the proxy and in the worker, are also measured alone, in this process. The cost
of tracing a wake, with span export off, is measured the same way.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import requests

from controlplane.metrics import figures, values
from controlplane.proxy.directory.interface import ComputeStart
from controlplane.proxy.sessions.wake_times import Wake, observe_parts
from tests.benchmarks.wake import time_wake, uri_of
from tests.support.processes import processes_of
from tests.support.project import Project
from tests.support.scraped import address
from tests.support.stack import Stack, new_directory, new_state_dir, running_stack

SCRAPE_EVERY = 15.0  # seconds
# Each round runs TRANSACTIONS transactions PAIRS times on each side, alternating.
TRANSACTIONS, PAIRS = 1_000, 10
WAKES = 10
NOTED = 10_000
WAIT = "wake, client's wait (ms)"


class Side:
    """A service and its measurements by their names."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.project = Project.create(stack, stack.client(), name="benchmark")
        self.found: dict[str, list[float]] = {}

    def processor_seconds(self, *parts: str) -> float:
        """Return the CPU time of the processes' threads, in seconds."""
        processes = [process for part in parts for process in processes_of(self.stack, part)]
        tasks = [task for one in processes for task in Path(f"/proc/{one.pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def measure_transactions(self) -> None:
        self.project.start()
        uri = uri_of(self.project)
        with psycopg.connect(uri, hostaddr="127.0.0.1", autocommit=True) as client:
            client.execute("SELECT 1")
            before, began = self.processor_seconds("proxy"), time.perf_counter()
            for _ in range(TRANSACTIONS):
                client.execute("SELECT 1")
            took = time.perf_counter() - began
            spent = self.processor_seconds("proxy") - before
        self.note("transaction, client's wait (µs)", took / TRANSACTIONS * 1e6)
        self.note("transaction, proxy's processor (µs)", spent / TRANSACTIONS * 1e6)

    def measure_wakes(self) -> None:
        waits, spent = [], 0.0
        for _ in range(WAKES):
            self.project.suspend()
            before = self.processor_seconds("proxy", "worker")
            waits.append(time_wake(uri_of(self.project)))
            spent += self.processor_seconds("proxy", "worker") - before
        self.note(WAIT, statistics.median(waits))
        self.note("wake, proxy's and worker's processor (ms)", spent / WAKES * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.metrics")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with ExitStack() as running:
        without, kept = (
            Side(
                running.enter_context(
                    running_stack(
                        running.enter_context(new_state_dir()),
                        PERCH_PROXY_PROCESSES="1",
                        PERCH_METRICS_LISTEN=listen,
                    )
                )
            )
            for listen in ("off", "")
        )
        ended = threading.Event()
        running.callback(ended.set)
        threading.Thread(target=scrape_until, args=[ended, kept.stack], daemon=True).start()
        for number in range(rounds):
            order = (without, kept) if number % 2 else (kept, without)
            for _ in range(PAIRS):
                alternate(Side.measure_transactions, order)
                order = order[::-1]
            alternate(Side.measure_wakes, order)
        for name in kept.found:
            show(name, without.found[name], kept.found[name])
        spent = time_noting()
        share = spent / statistics.median(without.found[WAIT]) * 100
        print(f"noting a wake: {spent * 1000:.1f} µs, {share:.2f} % of the client's wait")


def alternate(measure: Callable[[Side], None], order: tuple[Side, Side]) -> None:
    for side in order:
        measure(side)


def scrape_until(ended: threading.Event, stack: Stack) -> None:
    while not ended.wait(SCRAPE_EVERY):
        requests.get(address(stack), timeout=10)


def time_noting() -> float:
    """Return the milliseconds per wake spent recording the wake and its operation."""
    with new_directory() as directory:
        values.begin(directory, "benchmark", figures.known_names())
        began = time.perf_counter()
        for _ in range(NOTED):
            wake = Wake()
            wake.start = ComputeStart("an operation", wake.began_at, wake.began_at, wake.began_at)
            wake.succeeded()
            figures.CONNECTED.labels("direct").inc()
            observe_parts({"tls": 0.01, "password": 0.01, "first_answer": 0.01})
            figures.note_operation("start_compute", "finished", 0.1)
        return (time.perf_counter() - began) / NOTED * 1000


def show(name: str, without: list[float], kept: list[float]) -> None:
    before, after = statistics.median(without), statistics.median(kept)
    ratios = [one / other for one, other in zip(kept, without, strict=True) if other]
    cost = (statistics.median(ratios) - 1) * 100
    print(f"{name:<45} {before:8.2f} without  {after:8.2f} with  {cost:+5.1f} %", flush=True)


if __name__ == "__main__":
    main()
