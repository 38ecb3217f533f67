"""The time until the first answer must not reveal whether a name is known."""

import random
import statistics
import time
from collections.abc import Callable
from itertools import count

import pytest

from tests.proxy.wire import RawClient
from tests.support.place import Place

ROUNDS = 100
# Seconds by which medians may differ on a machine that does other work too.
TOLERANCE = 0.0001
# Other work may make one kind look slower in one attempt, but not in each.
TRIES = 3


def time_to_answer(port: int, endpoint_id: str, role: str) -> float:
    """Return the seconds from the start-up message to the request for the password."""
    client = RawClient(port)
    began = time.perf_counter()
    client.send_startup(user=role, database="neondb", options=f"endpoint={endpoint_id}")
    kind, _ = client.read_message()
    took = time.perf_counter() - began
    assert kind == b"R"
    client.socket.close()
    return took


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["active", "idle"])
def test_known_and_unknown_names_are_answered_in_the_same_time(place: Place, state: str) -> None:
    place.query("SELECT 1")
    if state == "idle":
        place.suspend()
    port, endpoint, role = place.stack.proxy_port, place.endpoint_id, place.role
    number = count()
    names: dict[str, Callable[[], tuple[str, str]]] = {
        "known": lambda: (endpoint, role),
        "unknown role": lambda: (endpoint, "mallory"),
        "new unknown role": lambda: (endpoint, f"mallory{next(number)}"),
        "unknown endpoint": lambda: ("ep-unknown-000002", role),
        "new unknown endpoint": lambda: (f"ep-unknown-1{next(number):05}", role),
    }
    for _ in range(20):  # until each process has cached what it can
        time_to_answer(port, *names["known"]())
    seen = []
    for _ in range(TRIES):
        medians = medians_of(port, names)
        spread = max(medians.values()) - min(medians.values())
        seen.append({kind: f"{median * 1e6:.0f} µs" for kind, median in medians.items()})
        if spread <= max(TOLERANCE, 0.1 * min(medians.values())):
            return
    raise AssertionError(seen)


def medians_of(port: int, names: dict[str, Callable[[], tuple[str, str]]]) -> dict[str, float]:
    took: dict[str, list[float]] = {kind: [] for kind in names}
    for _ in range(ROUNDS):
        for kind in random.sample(list(names), len(names)):
            took[kind].append(time_to_answer(port, *names[kind]()))
    return {kind: statistics.median(times) for kind, times in took.items()}
