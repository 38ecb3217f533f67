"""`python -m tests.benchmarks.suspend [CONNECTS]`: what clients notice of an endpoint that is
suspended as soon as it is idle, while proxies are stopped.

The endpoints have a suspend timeout of one second. Each has some clients that connect without the
pooler, ask for one row, disconnect, and stay away for about as long as the timeout, so that they
come at every moment of a suspend. Meanwhile the proxy's processes are stopped (SIGSTOP) and
continued, one or all, at random moments for random times. A client that gets any error counts as
lost.
"""

import asyncio
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg

from tests.support.place import Place
from tests.support.processes import proxy_processes
from tests.support.stack import Stack, new_state_dir, running_stack

CONNECTS = 10_000
ENDPOINTS = 12
CLIENTS = 3  # of each endpoint
# Seconds between two stops of proxies, and how long these are: mostly short, some longer than the
# endpoint's timeout, a few longer than `observation.NEW`.
BETWEEN = (0.1, 3.0)
USUAL, LONGEST = 0.3, 6.0
# The default time in seconds that a client waits, and the proxy for it.
PATIENCE = 30
# Seconds that clients stay away: about the timeout and the time to notice its end.
AWAY = (0.9, 2.0)


@dataclass
class Found:
    connects: int = 0
    suspends: int = 0
    # Seconds from connecting to the row.
    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Stalls:
    """Stops and continues the proxy's processes in a thread, while the block lasts."""

    def __init__(self, stack: Stack, *, seed: int) -> None:
        self._processes = proxy_processes(stack)
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.uniform(*BETWEEN)):
            number = self._random.randint(1, len(self._processes))
            length = min(self._random.expovariate(1 / USUAL), LONGEST)
            if self._random.random() < 0.05:
                length = self._random.uniform(1.0, LONGEST)
            self._stop(self._random.sample(self._processes, number), length)

    def _stop(self, processes: Sequence[psutil.Process], length: float) -> None:
        try:
            for process in processes:
                process.suspend()
            self._over.wait(length)
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        self.count += 1
        self.longest = max(self.longest, length)


def come_and_go(
    places: Sequence[Place],
    *,
    clients: int,
    seconds: float = float("inf"),
    connects: float = float("inf"),
) -> Found:
    """Run so many clients of each place, until a time has passed or so many have connected."""
    found = Found()
    deadline = time.monotonic() + seconds
    before = sum(map(suspends_of, places))

    async def come(place: Place, number: int) -> None:
        dice = random.Random(f"{place.endpoint_id} {number}")
        while time.monotonic() < deadline and found.connects < connects:
            await asyncio.sleep(dice.uniform(*AWAY))
            began = time.monotonic()
            try:
                await ask(place, tls=bool(number % 2))
            except psycopg.Error as error:
                waited = time.monotonic() - began
                found.errors.append(f"{place.endpoint_id} after {waited:.2f} s: {error}")
            found.connects += 1
            found.waits.append(time.monotonic() - began)
            if found.connects % 1000 == 0:
                print(f"  {found.connects} connects, {len(found.errors)} lost", flush=True)

    async def come_to_all() -> None:
        await asyncio.gather(*[come(place, n) for place in places for n in range(clients)])

    asyncio.run(come_to_all())
    found.suspends = sum(map(suspends_of, places)) - before
    return found


def suspends_of(place: Place) -> int:
    return len(place.endpoint_operations("suspend_compute"))


async def ask(place: Place, *, tls: bool) -> None:
    async with await psycopg.AsyncConnection.connect(
        **place.parameters(tls=tls, connect_timeout=PATIENCE), autocommit=True
    ) as connection:
        cursor: Any = await connection.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)


def main() -> None:
    connects = int(sys.argv[1]) if len(sys.argv) > 1 else CONNECTS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    with (
        new_state_dir() as state_dir,
        running_stack(
            state_dir, PERCH_PROXY_PROCESSES="2", PERCH_WAKE_TIMEOUT=str(PATIENCE)
        ) as stack,
    ):
        client = stack.client()
        drowsy = {"suspend_timeout_seconds": 1}
        places = [
            Place.create(stack, client, default_endpoint_settings=drowsy) for _ in range(ENDPOINTS)
        ]
        with Stalls(stack, seed=seed) as stalls:
            found = come_and_go(places, clients=CLIENTS, connects=connects)
    waits = sorted(found.waits)
    print(
        f"{found.connects} connects, {found.suspends} suspends, {len(found.errors)} lost (target: "
        f"0), longest wait {waits[-1]:.1f} s, median {waits[len(waits) // 2] * 1000:.0f} ms; "
        f"proxies stopped {stalls.count} times, for up to {stalls.longest:.1f} s (seed {seed})"
    )
    for error in found.errors[:10]:
        print(f"    {error}")


if __name__ == "__main__":
    main()
