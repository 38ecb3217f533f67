"""How long writes pause while an active project moves to another host: part of
`python -m tests.benchmarks.hosts`.

The hosts are real: a service, and a second host with a worker, a proxy and a state directory of its
own, on this machine. A client commits rows one by one through the proxy of the first host, and
connects again when it loses its connection. The pause is the longest time between two commits that
were acknowledged to it. In the end every acknowledged row must be there.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from tests.support.moves import Writer, await_known, living_on, move, operation
from tests.support.place import Place
from tests.support.second_host import NAME, second_host
from tests.support.stack import new_state_dir, running_stack
from tests.support.waiting import wait_for

FILL = "CREATE TABLE large AS SELECT repeat('x', 977) FROM generate_series(1, {} * 1000)"
ENDED = ("finished", "failed", "cancelled")


def measure_moves(megabytes: Sequence[int], rounds: int) -> None:
    """Print the pause for projects of each size, moved there and back `rounds` times."""
    with ExitStack() as opened:
        stack = opened.enter_context(running_stack(opened.enter_context(new_state_dir())))
        opened.enter_context(second_host(stack, opened.enter_context(new_state_dir())))
        client = stack.client()
        for size in megabytes:
            place = Place.create(stack, client)
            place.sql(FILL.format(size))
            await_known(place)
            for number in range(2 * rounds):
                print(f"{size:5} MB  {_moved(place, NAME if number % 2 == 0 else 'local')}")
                sys.stdout.flush()
            client.delete(place.path)


def _moved(place: Place, to: str) -> str:
    """Move the project while a client writes. Returns what was measured."""
    with Writer(place) as writer:
        began = time.monotonic()
        moving = move(place, to)
        wait_for(lambda: operation(place, moving)["status"] in ENDED, "the move", timeout=300)
        took = time.monotonic() - began
        writer.await_more()
    writer.check()
    ended = operation(place, moving)
    assert living_on(place) == to, ended
    handing_over = next(one for one in ended["steps"] if one["name"] == "handing_over")
    return (
        f"to {to:<6} in {took:5.1f} s  writes paused {writer.longest_pause:5.2f} s  target ≤ 1.00 s"
        f"  (step handing_over {handing_over['duration_ms'] / 1000:.2f} s)"
        f"  acknowledged rows {writer.acknowledged}, lost 0"
    )
