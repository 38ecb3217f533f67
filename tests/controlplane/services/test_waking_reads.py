"""A wake that finds no running compute has it started, and reads the endpoint's state only when
that may have changed."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.models import Action
from controlplane.proxy.directory.changes import ChangeListener, ComputeState
from controlplane.proxy.directory.waking import Waker
from controlplane.services import waking

IDLE = ComputeState("br-a", "1", disabled=False, run=None, is_coming=False)
COMING = ComputeState("br-a", "1", disabled=False, run=None, is_coming=True)
RUNNING = ComputeState("br-a", "1", disabled=False, run="now", is_coming=True)


class States:
    """The states that the database has, one after the other."""

    def __init__(self, *states: ComputeState, changes: ChangeListener) -> None:
        self._states, self._changes = list(states), changes
        self.reads: list[ComputeState] = []

    def advance(self) -> None:
        del self._states[0]
        self._changes._note_changed(["ep-a"])

    async def find(self, endpoint_id: str) -> ComputeState:
        self.reads.append(self._states[0])
        return self._states[0]

    look = find


def start() -> Any:
    return SimpleNamespace(id=uuid.uuid4(), action=Action.START_COMPUTE)


def woken(
    monkeypatch: pytest.MonkeyPatch,
    states: Sequence[ComputeState],
    request: Callable[[States, asyncio.AbstractEventLoop], list[Any]],
) -> list[ComputeState]:
    """Wake the endpoint. Returns the states that the wake has read. `request` is called in place of
    the service, in a thread."""

    async def go() -> list[ComputeState]:
        loop, unused = asyncio.get_running_loop(), SimpleNamespace()
        changes = ChangeListener(unused, [])  # type: ignore[arg-type]
        of_endpoint = States(*states, changes=changes)
        monkeypatch.setattr(waking, "start_for_client", lambda _: request(of_endpoint, loop))
        waker = Waker(unused, of_endpoint, changes, unused, unused)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(0.9):  # less than the interval of the poll
                address = await waker.wake("ep-a", pooled=False)
        finally:
            waker.close()
        assert address.run == "now"
        return of_endpoint.reads

    return asyncio.run(go())


def test_it_reads_the_state_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(states: States, loop: asyncio.AbstractEventLoop) -> list[Any]:
        # The request's own notification comes after its answer.
        loop.call_soon_threadsafe(loop.call_later, 0.02, states.advance)
        loop.call_soon_threadsafe(loop.call_later, 0.1, states.advance)
        return [start()]

    read = woken(monkeypatch, [IDLE, COMING, RUNNING], request)
    assert read == [IDLE, COMING, RUNNING]


@pytest.mark.parametrize("others", [(), (Action.CHECK_AVAILABILITY,)])
def test_it_does_not_wait_if_the_compute_has_started_meanwhile(
    monkeypatch: pytest.MonkeyPatch, others: Sequence[Action]
) -> None:
    def request(states: States, loop: asyncio.AbstractEventLoop) -> list[Any]:
        # Its notification came before the wake waited for any.
        del states._states[0]
        return [SimpleNamespace(id=uuid.uuid4(), action=action) for action in others]

    assert woken(monkeypatch, [COMING, RUNNING], request) == [COMING, RUNNING]


def test_it_waits_for_a_start_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(states: States, loop: asyncio.AbstractEventLoop) -> list[Any]:
        # Nothing had to be changed, so nothing is told of before the start has ended.
        loop.call_soon_threadsafe(loop.call_later, 0.02, states.advance)
        return [start()]

    assert woken(monkeypatch, [COMING, RUNNING], request) == [COMING, RUNNING]
