"""`python -m tests.benchmarks.access`: the cost of counting requests for a read, and of an
idempotency key for a change.

The requests of each pair alternate, from clients that are connected already.
"""

import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial

from tests.support.another_api import another_api
from tests.support.client import Client
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS = 10
# Requests alternate among so many accounts: one alone would reach its limit.
ACCOUNTS = 50
CHANGES = 300


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        print(f"{'request':<40}{'p50 ms':>9}{'p95 ms':>9}")
        reads(stack)
        changes(stack)


def reads(stack: Stack) -> None:
    """Measure GET /users/me, with requests counted and without."""
    keys = [stack.new_key() for _ in range(ACCOUNTS)]
    with another_api(stack, PERCH_API_RATE_LIMIT="100000") as counting, another_api(stack) as free:
        clients = [(counting.client(key), free.client(key)) for key in keys]
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(ROUNDS + 1):
            for pair in clients:
                for client, samples in zip(pair, times, strict=True):
                    took = duration(partial(client.get, "/users/me"))
                    if number:  # the first opens the connection
                        samples.append(took)
    report("read, requests counted", times[0])
    report("read, not counted", times[1])


def changes(stack: Stack) -> None:
    """Measure PATCH of a project's name, with an idempotency key and without."""
    client = stack.client()
    path = f"/projects/{client.new_project()['project']['id']}"
    with_key: list[float] = []
    without: list[float] = []
    for number in range(CHANGES):
        name = f"name {number}"
        key = {"Idempotency-Key": str(uuid.uuid4())}
        with_key.append(duration(partial(rename, client, path, name, key)))
        without.append(duration(partial(rename, client, path, name, {})))
    report("change with an Idempotency-Key", with_key)
    report("change without", without)


def rename(client: Client, path: str, name: str, headers: dict[str, str]) -> None:
    assert client.call("PATCH", path, json={"project": {"name": name}}, headers=headers).ok


def duration(call: Callable[[], object]) -> float:
    """Return the duration in milliseconds."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def report(request: str, times: list[float]) -> None:
    times.sort()
    p50, p95 = statistics.median(times), times[round(0.95 * (len(times) - 1))]
    print(f"{request:<40}{p50:>9.2f}{p95:>9.2f}")


if __name__ == "__main__":
    main()
