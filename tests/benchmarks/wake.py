"""`python -m tests.benchmarks.wake`: connecting to a sleeping endpoint until the first row.

In turns, on one and the same data directory: a bare `postgres` from spawn to the answer of
its first query, and a client's connection through the proxy, TLS and SCRAM included.
"""

import statistics
import time

import psycopg

from tests.benchmarks.start import report, time_bare
from tests.support.stack import new_state_dir, running_stack

ROUNDS = 50


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        client = stack.client()
        project = client.new_project(name="benchmark")
        endpoint = project["endpoints"][0]
        uri = project["connection_uris"][0]["connection_uri"]
        path = f"/projects/{project['project']['id']}/endpoints/{endpoint['id']}"
        client.finish(client.post(path + "/suspend"))
        bare, woken = [], []
        for _ in range(ROUNDS):
            bare.append(time_bare(stack, endpoint))
            woken.append(time_wake(uri))
            client.finish(client.post(path + "/suspend"))
        report("bare postgres", bare)
        report("wake on connect", woken)
        ratio = statistics.median(woken) / statistics.median(bare)
        print(f"p50 is {ratio:.2f} times bare (target: p50 100 ms and 3 times, p95 200 ms)")


def time_wake(uri: str) -> float:
    """Milliseconds from connecting until the first row."""
    began = time.perf_counter()
    with psycopg.connect(uri, hostaddr="127.0.0.1") as connection:
        connection.execute("SELECT 1").fetchone()
        return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
