"""The host process serves all accounts, whatever the calls of one account wait for."""

import asyncio
import errno
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.compute import compute, pooler
from controlplane.compute.host import patience
from controlplane.compute.processes.occupants import StopFailed, have_ended
from controlplane.models import Role
from controlplane.proxy.directory import control_database, host_calls
from controlplane.proxy.directory.changes import ComputeState
from controlplane.proxy.directory.host_calls import HostCalls, fork_host_process
from controlplane.proxy.directory.waking import ComputeRunWatcher, Waker
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.services import waking
from tests.support.waiting import wait_for

# More than the host process has threads.
MANY = 200
HANGS = "ep-hangs"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostCalls]:
    """Makes calls in a host process, in which those for HANGS hang until it is left. Each makes a
    file in `tmp_path`, and returns what gives database connections back."""
    reader, writer = os.pipe()

    def call(endpoint_id: str, *_: str) -> str:
        (tmp_path / str(time.monotonic_ns())).touch()
        if endpoint_id == HANGS:
            select.select([reader], [], [])
        return patience.before_waits.__name__

    table: dict[str, Any] = dict.fromkeys(("import_catalog", "notice_death", "start_pooler"), call)
    table["open_certificate"] = lambda: os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(host_calls, "calls", lambda: table)
    requests, parent = fork_host_process(lambda: os.close(writer))
    with requests:
        yield HostCalls(requests)
        os.close(writer)
    wait_for(lambda: os.waitpid(parent, os.WNOHANG) == (parent, 0), "its end")
    os.close(reader)


def test_hanging_calls_of_an_account_leave_threads_to_others(
    host: HostCalls, tmp_path: Path
) -> None:
    def hang(number: int) -> None:
        with suppress(ControlPlaneUnavailable):
            host.call(("import_catalog", "notice_death")[number % 2], HANGS, account_id="1")

    pool = ThreadPoolExecutor(MANY)
    hanging = [pool.submit(hang, number) for number in range(MANY)]
    wait_for(lambda: len(os.listdir(tmp_path)) >= 8, "calls to hang")
    wait_for(lambda: len(pool._threads) == MANY, "all calls to be made")
    began = time.monotonic()
    assert host.call("start_pooler", "ep-other", "br-a", account_id="2") == "release_connection"
    os.close(host.call("open_certificate"))
    assert time.monotonic() - began < 5
    assert len(os.listdir(tmp_path)) == 9
    assert not any(call.done() for call in hanging)
    pool.shutdown(wait=False)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/var/lib/perch/branches/br-a"),
        FileNotFoundError(errno.ENOENT, "No such file", "/var/lib/perch/branches/br-a"),
        subprocess.TimeoutExpired(["pgbouncer", "--version"], 5),
    ],
)
def test_a_pooler_that_the_host_cannot_start_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("lock_branches", "holding_catalog"):
        monkeypatch.setattr(host_calls, name, lambda *_, **__: nullcontext())
    monkeypatch.setattr(compute, "accepts_clients", lambda *_: True)
    monkeypatch.setattr(Role, "login_names", lambda _: [])
    monkeypatch.setattr(host_calls, "ensure_pooler", fail)
    with pytest.raises(pooler.PoolerUnavailable, match="connect without -pooler meanwhile"):
        HostCalls().call("start_pooler", "ep-a", "br-a")
    (record,) = [one for one in caplog.records if one.message == "pooler did not start"]
    assert vars(record)["error"] == str(error)


def test_who_waits_for_processes_holds_no_database_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    released: list[bool] = []
    monkeypatch.setattr(patience, "before_waits", lambda: released.append(True))
    have_ended([psutil.Process()], timeout=0)
    assert released
    released.clear()

    def end(_: Path) -> None:
        assert released
        raise StopFailed

    monkeypatch.setattr(pooler, "admit_roles", lambda *_: None)
    monkeypatch.setattr(pooler, "end_processes_in", end)
    monkeypatch.setattr(pooler, "pgbouncer", lambda: "/bin/false")
    with pytest.raises(pooler.PoolerUnavailable):
        pooler.ensure_pooler("br-a", tmp_path, roles=[])


def test_poolers_that_hang_hold_up_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many accounts have them."""
    monkeypatch.setattr(control_database, "close_old_connections", lambda: None)
    monkeypatch.setattr(waking, "start_for_client", lambda endpoint_id: [endpoint_id])
    freed = threading.Event()

    class Host(HostCalls):
        is_here = False

        def call(self, name: str, *arguments: str, account_id: str = "") -> Any:
            if name == "open_run":
                return None
            if name == "start_pooler":
                freed.wait(20)
            return arguments[0] if name == "running_endpoint" else (1, 24)

    class Changes:
        def note_branch(self, *_: str) -> None: ...

        async def running(self, endpoint_id: str) -> ComputeState:
            return ComputeState(endpoint_id, endpoint_id, False, "run", False)

        find = look = running

    async def go() -> object:
        fake: Any = Changes()
        waker = Waker(fake, fake, fake, ComputeRunWatcher(lambda _: None), Host())
        hanging = [asyncio.create_task(waker.wake(f"ep-{n}", pooled=True)) for n in range(100)]
        await asyncio.sleep(0.2)
        try:
            return await waker._request_start("ep-other", "other")
        finally:
            freed.set()
            await asyncio.gather(*hanging, return_exceptions=True)
            waker.close()

    assert asyncio.run(go()) == ["ep-other"]
