"""`up --replace`: another `up` takes the place of the running one, under traffic."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.place import Place, serves
from tests.support.processes import is_alive, postmaster_in, proxy_processes
from tests.support.replacing import replaced
from tests.support.stack import running_stack
from tests.support.traffic import Traffic
from tests.support.waiting import wait_for


@pytest.mark.thorough
def test_computes_and_clients_stay(state_dir: Path) -> None:
    with running_stack(state_dir, PERCH_PROXY_PROCESSES="2") as stack:
        place, asleep = (Place.create(stack, stack.client()) for _ in range(2))
        postmaster = postmaster_in(stack.data_dir(place.branch_id))
        previous = proxy_processes(stack)
        with (
            place.connect() as kept,
            asleep.connect(pooled=True) as parked,
            Traffic([place]) as traffic,
            ThreadPoolExecutor(1) as threads,
        ):
            asleep.suspend()
            # It wakes while neither the database nor a worker runs.
            waking = threads.submit(query_after, stack.process, asleep)
            wait_for(lambda: all(seen.count for seen in traffic.seen.values()), "the clients")
            with replaced(stack) as other:
                assert stack.process.wait(30) == 0
                assert waking.result(60) == (1,)
                assert serves(kept)
                assert serves(parked)
                assert is_alive(postmaster)
                counts = {kind: seen.count for kind, seen in traffic.seen.items()}
                wait_for(
                    lambda: all(seen.count > counts[kind] for kind, seen in traffic.seen.items()),
                    "the clients to continue",
                )
                traffic.stop()
                assert traffic.errors == []
                # Ctrl-C ends also what the previous proxy has left.
                assert any(map(is_alive, previous))
                left = [*previous, *psutil.Process(other.pid).children(recursive=True)]
        assert not any(map(is_alive, left))
        assert not is_alive(postmaster)


def query_after(process: "subprocess.Popen[bytes]", place: Place) -> Any:
    process.wait(90)
    return place.query("SELECT 1")
