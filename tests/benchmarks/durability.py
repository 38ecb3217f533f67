"""`python -m tests.benchmarks.durability`: how long a commit takes that waits for a second host,
and how many eight clients make, compared with commits that do not wait.

Both hosts run on this machine, on one disk: a second machine's disk would write at the same time,
and its network adds its own latency. Both ways are measured alternately; each ratio is the median
of the ratios within a round.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.place import Place
from tests.support.second_host import placing_on, second_host
from tests.support.service import Service
from tests.support.stack import new_state_dir
from tests.support.waiting import wait_for

INSERT = "INSERT INTO measured VALUES (1)"
CLIENTS = 8


def latency(place: Place, commits: int) -> float:
    """Median milliseconds of a commit."""
    taken = []
    with place.connect() as connection:
        for _ in range(commits):
            began = time.perf_counter()
            connection.execute(INSERT)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def rate(place: Place, commits: int) -> float:
    """Commits a second of all clients."""

    def work(_: int) -> None:
        with place.connect() as connection:
            for _ in range(commits):
                connection.execute(INSERT)

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(work, range(CLIENTS)))
    return CLIENTS * commits / (time.perf_counter() - began)


def choose(place: Place, durability: str) -> None:
    place.client.patch(place.path, {"project": {"settings": {"durability": durability}}})
    waits = durability == "region"
    shown = "SHOW synchronous_standby_names"
    wait_for(lambda: bool(place.query(shown)[0]) == waits, "the setting to apply")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=300)
    options = parser.parse_args()
    with new_state_dir() as parent:
        for name in ("local", "store"):
            (parent / name).mkdir(mode=0o711)
        store = f"file://{parent}/store"
        service = Service(parent / "local", PERCH_HISTORY_STORE=store)
        try:
            beside = second_host(service.stack, parent / "second", PERCH_HISTORY_STORE=store)
            with beside:
                with placing_on(service.stack, "local"):
                    place = Place.create(service.stack, service.client)
                with place.connect() as connection:
                    connection.execute("CREATE TABLE measured (number int)")
                measure(place, options.rounds, options.commits)
                place.client.delete(place.path)
        finally:
            service.down()


def measure(place: Place, rounds: int, commits: int) -> None:
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for durability in ("host", "region"):
            choose(place, durability)
            for name, one in (("ms", latency), ("commits/s", rate)):
                found.setdefault((name, durability), []).append(one(place, commits))
    for name in ("ms", "commits/s"):
        host, region = found[name, "host"], found[name, "region"]
        ratio = statistics.median(b / a for a, b in zip(host, region, strict=True))
        print(
            f"{name}: host {statistics.median(host):.2f}, region {statistics.median(region):.2f}, "
            f"ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
