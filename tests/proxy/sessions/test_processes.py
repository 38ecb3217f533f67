"""Several proxy processes behind one port."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from controlplane.proxy.limits.connection_limits import SLOTS, SharedCounts
from controlplane.proxy.settings import Siblings
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
SLEEP = "SELECT pg_sleep(61)"
PROGRAM = """
import sys, time
from pathlib import Path
from controlplane.proxy.listeners import Handover
from controlplane.proxy.processes import run_processes
handover = Handover(Path("nowhere"), linger_within=0).take_over()
run_processes(int(sys.argv[1]), lambda number, ready: time.sleep(600), handover=handover)
"""


@pytest.mark.parametrize("asked", [0, 1])
def test_a_cancel_request_reaches_the_process_that_has_the_query(
    identity: TlsIdentity,
    directory: MemoryDirectory,
    postgres: BarePostgres,
    tmp_path: Path,
    asked: int,
) -> None:
    counts = SharedCounts()
    groups = [Siblings(number, tmp_path, counts) for number in range(2)]
    with (
        running_proxy(identity, directory, siblings=groups[0]) as first,
        running_proxy(identity, directory, siblings=groups[1]) as second,
        second.connect(ENDPOINT, **ALICE, max_protocol_version="3.0") as connection,
        ThreadPoolExecutor() as pool,
    ):
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        messenger = RawClient((first, second)[asked].port)
        pid = connection.pgconn.backend_pid
        secret = second.secret_of(pid)
        messenger.socket.sendall(messages.cancel_request(pid, secret))
        assert messenger.read_to_end() == b""
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(20)


def test_every_cancel_key_names_its_process() -> None:
    counts = SharedCounts()
    for number in (0, 1, SLOTS - 1):
        group = Siblings(number, Path("/"), counts)
        for pid in (0, 1, 12345, 2**30 - 1):
            own = group.own_pid(pid)
            assert 0 <= own < 2**31
            assert group.owner_of(own) == number


class Family:
    """`run_processes` in a program of its own."""

    def __init__(self, size: int) -> None:
        self.parent = psutil.Popen([sys.executable, "-c", PROGRAM, str(size)])
        wait_for(lambda: len(self.children()) == size, "all processes")

    def children(self) -> list[psutil.Process]:
        """Return the processes that `run_processes` has called its function in."""
        return [child for supervising in self.supervising() for child in supervising.children()]

    def supervising(self) -> list[psutil.Process]:
        return list(self.parent.children())


@pytest.mark.slow
def test_a_process_that_dies_is_replaced() -> None:
    family = Family(2)
    dying, surviving = family.children()
    dying.kill()
    wait_for(
        lambda: len(family.children()) == 2 and dying not in family.children(), "another process"
    )
    assert surviving in family.children()
    family.parent.terminate()
    assert family.parent.wait(20) == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_single_process_has_a_parent_that_replaces_it() -> None:
    family = Family(1)
    (dying,) = family.children()
    dying.kill()
    wait_for(
        lambda: len(family.children()) == 1 and dying not in family.children(), "another child"
    )
    family.parent.terminate()
    assert family.parent.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes(number: signal.Signals) -> None:
    family = Family(2)
    children = family.children()
    family.parent.send_signal(number)
    assert family.parent.wait(20) == 0
    wait_for(lambda: not any(child.is_running() for child in children), "their end")


@pytest.mark.parametrize("which", ["main", "supervising"])
def test_no_process_outlives_a_parent_that_is_killed(which: str) -> None:
    family = Family(2)
    (supervising,) = family.supervising()
    family_members = [family.parent, supervising, *family.children()]
    family_members[which == "supervising"].kill()
    family.parent.wait(20)
    wait_for(lambda: not any(map(is_alive, family_members)), "their end")
