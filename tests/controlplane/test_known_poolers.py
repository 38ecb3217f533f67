"""What a proxy remembers about the poolers that it has started."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from typing import Any, cast

import pytest

from controlplane.proxy.directory import host_calls
from controlplane.proxy.directory.changes import ChangeListener
from controlplane.proxy.directory.compute_runs import ComputeRunWatcher
from controlplane.proxy.directory.compute_states import ComputeState, ComputeStates
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.host_calls import HostCalls
from controlplane.proxy.directory.waking import Waker

ENDPOINT, BRANCH = "ep-calm-river-000001", "br-calm-river-000001"


class FakeStates:
    """The states of an endpoint whose compute is always running."""

    run = "first"

    async def find(self, _: str) -> ComputeState:
        return ComputeState(BRANCH, disabled=False, run=self.run, is_coming=True)


class FakeChanges:
    def note_branch(self, endpoint_id: str, branch_id: str) -> None:
        pass


@pytest.fixture
def compute() -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of the endpoint's Postgres."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, compute: subprocess.Popen[bytes]) -> list[str]:
    """The list of endpoints whose poolers were started, in order."""
    started: list[str] = []

    def start(endpoint_id: str, _: str) -> tuple[int, int]:
        started.append(endpoint_id)
        return (1, 21)

    def open_run(*_: str) -> int | None:
        return os.pidfd_open(compute.pid) if compute.poll() is None else None

    calls = {
        "start_pooler": start,
        "running_endpoint": lambda _: ENDPOINT,
        "open_run": open_run,
    }
    monkeypatch.setattr(host_calls, "CALLS", calls)
    return started


def remembers(*parts: Any) -> bool:
    return any(ENDPOINT in repr(vars(part)) for part in parts)


def test_a_pooler_is_started_once_per_run_and_forgotten_at_its_end(
    compute: subprocess.Popen[bytes], started: list[str]
) -> None:
    async def go() -> None:
        has_ended = asyncio.Event()
        states, runs = FakeStates(), ComputeRunWatcher(lambda _: has_ended.set())
        waker = Waker(
            cast(ControlDatabase, None),
            cast(ComputeStates, states),
            cast(ChangeListener, FakeChanges()),
            runs,
            HostCalls(),
        )
        for _ in range(2):
            address = await waker.wake(ENDPOINT, pooled=True)
            assert (address.run, address.pooler_version) == ("first", (1, 21))
        assert started == [ENDPOINT]
        assert remembers(waker, runs)
        compute.kill()
        compute.wait()
        await asyncio.wait_for(has_ended.wait(), 10)
        assert not remembers(waker, runs)
        # Nothing reports the end of a run that cannot be watched, so the proxy does not remember
        # it.
        await waker.wake(ENDPOINT, pooled=True)
        assert started == [ENDPOINT, ENDPOINT]
        assert not remembers(waker, runs)
        waker.close()

    asyncio.run(go())
