"""Has computes started, and poolers beside them, for waiting clients. And notices at once when a
compute with pooled clients has died: its pooler keeps running and accepts queries that no compute
will answer."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.pooler import PoolerUnavailable, pooler_socket
from controlplane.compute.processes.session import socket_dir
from controlplane.models import Action, Operation
from controlplane.models.connecting import find_failure
from controlplane.proxy.directory.changes import ChangeListener, ComputeState, ComputeStates
from controlplane.proxy.directory.control_database import ControlDatabase, ServiceCalls
from controlplane.proxy.directory.host_calls import ComputeStopped, HostCalls
from controlplane.proxy.directory.interface import ComputeAddress, ComputeRun, ComputeStart
from controlplane.proxy.wire.errors import (
    DisabledEndpointRefused,
    HostUnavailable,
    QuotaUsedUp,
    WakeFailed,
)
from controlplane.services import waking
from controlplane.services.errors import EndpointDisabled, ServiceError
from controlplane.services.rules.plan_limits import QuotaExceeded

log = logging.getLogger(__name__)

# Time limits of the calls below, in seconds. A start is requested in its call, not awaited.
_ASK_TIMEOUT = 4.0
_POOLER_TIMEOUT, _POOLER_RETRY_DELAY = 16.0, 0.05
_DEATH_NOTICE_TIMEOUT = 10.0
_LOOK_TIMEOUT = 5.0


class ComputeRunWatcher:
    """Must be used within one event loop. `ended` is called with the id of each endpoint whose run
    has ended."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._by_endpoint: dict[str, ComputeRun] = {}

    def of(self, endpoint_id: str, run: str | None) -> ComputeRun | None:
        """Returns the endpoint's run, if it is watched."""
        watched = self._by_endpoint.get(endpoint_id)
        return watched if watched is not None and watched.run == run else None

    def watch(self, endpoint_id: str, run: str, descriptor: int) -> ComputeRun:
        """Watches the endpoint's run, given a descriptor from `compute.open_run`, which is closed
        with it. Returns the run."""
        if known := self.of(endpoint_id, run):
            # Another client's call was faster.
            os.close(descriptor)
            return known
        if watched := self._by_endpoint.get(endpoint_id):
            self._forget(endpoint_id, watched)
        watched = self._by_endpoint[endpoint_id] = ComputeRun(run, descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._end, endpoint_id, watched)
        return watched

    def forget_pooler(self, endpoint_id: str) -> None:
        """Forgets that the endpoint's compute has a pooler, which may have died."""
        if watched := self._by_endpoint.get(endpoint_id):
            watched.pooler_version = None

    def close(self) -> None:
        for endpoint_id, watched in list(self._by_endpoint.items()):
            self._forget(endpoint_id, watched)

    def _end(self, endpoint_id: str, watched: ComputeRun) -> None:
        self._forget(endpoint_id, watched)
        self._ended(endpoint_id)

    def _forget(self, endpoint_id: str, watched: ComputeRun) -> None:
        asyncio.get_running_loop().remove_reader(watched.descriptor)
        watched.close()
        del self._by_endpoint[endpoint_id]


@dataclass(eq=False)
class Waker:
    _database: ControlDatabase
    _states: ComputeStates
    _changes: ChangeListener
    _compute_runs: ComputeRunWatcher
    _host: HostCalls
    # Those that wait for no compute or pooler have threads of their own.
    _quick_calls: ServiceCalls = field(default_factory=ServiceCalls, init=False)
    _calls: ServiceCalls = field(default_factory=ServiceCalls, init=False)

    def close(self) -> None:
        self._quick_calls.close()
        self._calls.close()

    def running(self, endpoint_id: str) -> ComputeAddress | None:
        """Returns the address of the endpoint's compute if it is known to run, as `wake` would."""
        state = self._states.cache.known(endpoint_id, "")
        if state is None or state.run is None or state.disabled:
            return None
        self._changes.note_branch(endpoint_id, state.branch_id, state.account_id)
        return _compute_address(endpoint_id, state.run)

    async def wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
    ) -> ComputeAddress:
        """See `Directory.wake`."""
        while True:
            with contextlib.suppress(ComputeStopped):
                return await self._wake(endpoint_id, pooled=pooled, refused=refused)
            # A suspend or a restart happened between the wake and the pooler's start, or is about
            # to be called off.
            self._states.cache.invalidate(endpoint_id)
            await asyncio.sleep(_POOLER_RETRY_DELAY)

    async def _wake(
        self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None
    ) -> ComputeAddress:
        """Raises ComputeStopped as well."""
        state = await self._states.find(endpoint_id)
        if state.run is not None and refused is not None and refused.run == state.run:
            # The compute may be about to stop, which this process has not been notified of yet.
            state = await self._states.look(endpoint_id)
            if state.run == refused.run:
                state = await self._check_compute(endpoint_id, state)
        if pooled:
            state = await self._confirm_running(endpoint_id, state)
        start = None
        if state.run is None:
            state, start = await self._start(endpoint_id, state)
        if state.disabled:
            raise DisabledEndpointRefused
        # Before the address is returned: a change received after this drops these clients.
        self._changes.note_branch(endpoint_id, state.branch_id, state.account_id)
        address = await self._address(endpoint_id, state, pooled=pooled)
        return replace(address, start=start) if start else address

    async def _start(
        self, endpoint_id: str, state: ComputeState
    ) -> tuple[ComputeState, ComputeStart | None]:
        """Has the endpoint started, which did not run when `state` was read, and waits until it
        runs. Returns the start as well, unless the endpoint ran before one was requested.

        The operations waited for may succeed and still be of no use, if a suspend or a reassignment
        was requested after them. So this waits only for operations that lead to an active endpoint.
        Otherwise it requests a start again, to come after whatever was requested meanwhile.
        """
        operations: Sequence[Operation] | None = None
        start: Operation | None = None
        handed_over_at = 0.0
        changed = self._changes.next_change(endpoint_id)
        while state.run is None:
            if state.disabled:
                raise DisabledEndpointRefused
            # Requested once even if a start is under way: that may be queued behind others, and
            # this moves it to the front.
            is_starting = operations is not None and state.is_coming
            if not is_starting:
                if operations and (reason := await self._failure(operations)):
                    raise WakeFailed(f"endpoint could not start: {reason}")
                operations = await self._request_start(endpoint_id, state.account_id)
                is_starting = any(one.action == Action.START_COMPUTE for one in operations)
                if operations and start is None:
                    # The last one of their chain is the start; the others prepare it.
                    handed_over_at, start = time.monotonic(), operations[-1]
            if is_starting:
                # The request itself is the first change: after it, the state is read once.
                await self._changes.wait_for(changed)
            changed = self._changes.next_change(endpoint_id)
            state = await self._states.look(endpoint_id)
        if start is None:
            return state, None
        return state, ComputeStart(str(start.id), handed_over_at, time.monotonic())

    async def _failure(self, operations: Sequence[Operation]) -> str | None:
        ids = [operation.id for operation in operations]
        ask = partial(find_failure, operations=ids, action=Action.START_COMPUTE)
        return await self._database.ask(ask)

    async def _request_start(self, endpoint_id: str, account_id: str) -> Sequence[Operation]:
        """Requests a start. Returns the operations that lead to it. Raises DisabledEndpointRefused,
        QuotaUsedUp, HostUnavailable, WakeFailed."""
        try:
            return await self._quick_calls.call(
                waking.start_for_client, endpoint_id, timeout=_ASK_TIMEOUT, account_id=account_id
            )
        except EndpointDisabled as error:
            raise DisabledEndpointRefused from error
        except QuotaExceeded as error:
            raise QuotaUsedUp(error.words) from error
        except waking.HostWaits as error:
            raise HostUnavailable(error.message) from error
        except ServiceError as error:
            raise WakeFailed(error.message) from error

    async def _confirm_running(self, endpoint_id: str, state: ComputeState) -> ComputeState:
        """Returns the state once it does not report a dead compute as running.

        A pooler outlives its compute until the death is noticed, and accepts clients meanwhile;
        their first query would end their connection. So this looks for the compute itself.
        """
        while state.run and not await self._runs(endpoint_id, state):
            changed = self._changes.next_change(endpoint_id)
            seen, state = state, await self._check_compute(endpoint_id, state)
            if state == seen:
                # An operation holds the branch, and will record the outcome.
                await self._changes.wait_for(changed)
        return state

    async def _runs(self, endpoint_id: str, state: ComputeState) -> bool:
        """Returns True if the compute of the state's run is alive."""
        if watched := self._compute_runs.of(endpoint_id, state.run):
            return not watched.has_ended()
        return bool(await self._look_up("running_endpoint", state.branch_id) == endpoint_id)

    async def _look_up(self, name: str, *arguments: str) -> Any:
        """Returns what a function of CALLS finds, which takes no time in this process."""
        if self._host.is_here:
            return self._host.call(name, *arguments)
        call = self._quick_calls.call
        return await call(self._host.call, name, *arguments, timeout=_LOOK_TIMEOUT)

    async def _check_compute(self, endpoint_id: str, state: ComputeState) -> ComputeState:
        """Returns the endpoint's state after its compute, which did not answer, was checked."""
        self._compute_runs.forget_pooler(endpoint_id)
        try:
            await self._calls.call(
                partial(self._host.call, account_id=state.account_id),
                *("notice_death", endpoint_id),
                timeout=_DEATH_NOTICE_TIMEOUT,
                account_id=state.account_id,
            )
        except (LockTimeout, OSError) as error:
            # Another process has locked the branch, or the host has failed, as by a full disk.
            fields = {"endpoint": endpoint_id, "error": str(error)}
            log.info("compute does not answer, and cannot be checked", extra=fields)
        return await self._states.look(endpoint_id)

    async def _address(
        self, endpoint_id: str, state: ComputeState, *, pooled: bool
    ) -> ComputeAddress:
        run = state.run or ""
        directory = socket_dir(endpoint_id)
        if not pooled:
            return _compute_address(endpoint_id, run)
        compute_run = await self._watched(endpoint_id, state.branch_id, run)
        version = compute_run.pooler_version if compute_run is not None else None
        if version is None:
            try:
                found = await self._calls.call(
                    partial(self._host.call, account_id=state.account_id),
                    *("start_pooler", endpoint_id, state.branch_id),
                    timeout=_POOLER_TIMEOUT,
                    account_id=state.account_id,
                )
                version = (found[0], found[1])
            except (PoolerUnavailable, LockTimeout) as error:
                raise WakeFailed(str(error)) from error
            if compute_run is not None:
                compute_run.pooler_version = version
        return ComputeAddress(pooler_socket(directory), run, version, compute_run)

    async def _watched(self, endpoint_id: str, branch_id: str, run: str) -> ComputeRun | None:
        """Watches the endpoint's compute, which runs on the branch, and returns its run. None if
        the compute does not run for this endpoint any more, or the kernel cannot report its end."""
        if watched := self._compute_runs.of(endpoint_id, run):
            return watched
        descriptor = await self._look_up("open_run", branch_id, endpoint_id)
        return descriptor and self._compute_runs.watch(endpoint_id, run, descriptor)


@lru_cache(maxsize=1024)
def _compute_address(endpoint_id: str, run: str) -> ComputeAddress:
    return ComputeAddress(socket_dir(endpoint_id) / ".s.PGSQL.5432", run)
