"""Moves running computes with their project (`project_move`): keeps the copy on the other host up
to date while they serve their clients, and stops them only for the last of their log.

While they are stopped, the operations that start them on the other host say so
(`StartComputeDetails`): proxies park pooled clients and let new ones wait. If the move does not
succeed after all, the computes run again here at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import psycopg
from django.db.models import F

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.base_backup import RUNNING_FILES
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.cloning import clone_tree, shares_blocks
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.patience import Cancelled, check_cancelled, patience
from controlplane.compute.host.steps import step
from controlplane.compute.processes.process import stop_postgres
from controlplane.compute.processes.session import socket_dir
from controlplane.fleet.messages import Link, LinkBroken
from controlplane.fleet.moving.sending import SentBlocks, send_branch, send_unlogged_files
from controlplane.fleet.moving.streaming import Stream, streaming
from controlplane.models import (
    CATALOG_UNREAD,
    MAY_SUCCEED,
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Lane,
    Operation,
    OperationStatus,
)
from controlplane.operations.actions.computes import START_RELATIONS, count_written, start
from controlplane.operations.details import MoveProjectDetails, StartComputeDetails
from controlplane.operations.locks import locked_project
from controlplane.operations.states import enter

log = logging.getLogger(__name__)

# Bytes of log that the other host may be behind when the computes are stopped, and for how many
# seconds it may stay farther behind.
MAX_BEHIND_BYTES, CATCH_UP_TIMEOUT = 4 << 20, 600.0
# Seconds between two looks at how far the other host is.
POLL_INTERVAL = 0.1
# Seconds that clients get which are just logging in here: they would wait here for a compute that
# starts on the other host.
LOGIN_TIMEOUT = 0.5
# Seconds that a standby which does not answer is waited for. It answers at the latest once the
# compute has stopped, so it is not waited for longer.
ANSWER_TIMEOUT = 30.0
# Seconds without progress after which stopped computes run here again.
HAND_OVER_TIMEOUT = 10.0
# Seconds in which no pooled client has left the pooler, before it is stopped anyway.
LEAVE_TIMEOUT = 0.2
# Seconds without progress that computes get to start here again.
RESUME_TIMEOUT = 60.0
NOT_MOVING = StartComputeDetails()
# The clone of a running compute's files in its branch's directory, from which they are sent.
CLONE = "moving"


class Streams:
    """The running computes of a project that moves, over one link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._held = ExitStack()
        self._clones = ExitStack()
        self._running: list[tuple[Endpoint, Stream]] = []

    def close(self) -> None:
        self._held.close()
        self._clones.close()

    def look(self) -> None:
        """Send the new log of all computes, unless that was done a moment ago."""
        for _, stream in self._running:
            stream.look()

    def send(self, endpoint: Endpoint, sent: SentBlocks) -> None:
        """Send the branch of the running endpoint, and from now on the log of its compute. Raises
        psycopg.Error, LogCutOff, and what `send_branch` raises."""
        branch_id = endpoint.branch_id
        stream = self._held.enter_context(streaming(self._link, branch_id, socket_dir(endpoint.id)))
        self._running.append((endpoint, stream))
        data = self._clones.enter_context(_stable_files(branch_id))
        send_branch(self._link, branch_id, sent, of_running=(stream, data), between=self.look)

    def hand_over(self, tell_clients: Callable[[StartComputeDetails], None]) -> None:
        """Let the other host catch up, stop the computes, and have it complete their copies.
        `tell_clients` is called some time before the stop and right before it. Raises what `send`
        raises, and OutOfPatience."""
        with step("catching_up"):
            # Not before all branches are there: those that are sent later may share blocks with
            # these files, which a standby changes.
            for endpoint, stream in self._running:
                self._link.send(start=endpoint.branch_id, needed=stream.settings())
                self._link.receive()
            self._catch_up()
            tell_clients(StartComputeDetails(announced=True))
            announced_at = time.monotonic()
            for endpoint, stream in self._running:
                stream.write_checkpoint()
                stream.send_new()
                self._link.send(checkpoint=endpoint.branch_id)
                self._link.receive()
            self._catch_up(until=announced_at + LOGIN_TIMEOUT)
        subscribes = any(stream.has_subscriptions() for _, stream in self._running)
        with step("handing_over"), patience(HAND_OVER_TIMEOUT):
            for endpoint, _ in self._running:
                count_written(endpoint.id, endpoint.branch_id)
            tell_clients(StartComputeDetails(announced=True, moving=True))
            for endpoint, stream in self._running:
                compute.disconnect_clients(
                    endpoint.branch_id, endpoint.id, stall_timeout=LEAVE_TIMEOUT
                )
                stream.end_clients()
                stream.send_new()
            for endpoint, stream in self._running:
                stop_postgres(data_dir(endpoint.branch_id))
                begin, end = stream.send_rest()
                self._link.send(finish=stream.branch_id, begin=begin, end=end)
                send_unlogged_files(self._link, stream.branch_id)
                self._link.flush()
            # While the other host is at work.
            for endpoint, _ in self._running:
                _end(endpoint)
            for _ in self._running:
                self._link.receive()
        # A subscription would take changes from its publisher before it is certain where they are
        # to be kept.
        early = [] if subscribes else [endpoint.id for endpoint, _ in self._running]
        self._link.send(done=True, start=early)
        self._link.flush()

    def _catch_up(self, *, until: float = 0) -> None:
        """Return once the other host is little behind all computes, and not before `until`."""
        began = time.monotonic()
        while self._is_behind(began) or time.monotonic() < until:
            if time.monotonic() > began + CATCH_UP_TIMEOUT:
                raise LinkBroken("the other host does not keep up with what clients write")
            check_cancelled()
            time.sleep(POLL_INTERVAL)

    def _is_behind(self, began: float) -> bool:
        """Send the new log, and return whether the other host is far behind any compute."""
        behind = 0
        for _, stream in self._running:
            until = stream.send_new()
            self._link.send(replayed=stream.branch_id)
            replayed = int(self._link.receive()["replayed"])
            if replayed:
                behind = max(behind, until - replayed)
            elif time.monotonic() < began + ANSWER_TIMEOUT:
                return True
        return behind > MAX_BEHIND_BYTES


def _end(endpoint: Endpoint) -> None:
    """End what is left of a compute whose Postgres has stopped."""
    compute.stop(endpoint.branch_id)
    compute.end_started(endpoint.branch_id, endpoint.id)
    compute.forget_endpoint(endpoint.id)


@contextmanager
def _stable_files(branch_id: str) -> Iterator[Path]:
    """The files of a running compute, to be sent. Where the disk shares blocks, it is a clone: a
    block that is told from others by its place must not change meanwhile."""
    data = data_dir(branch_id)
    if not shares_blocks(data.parent.parent):
        yield data
        return
    clone = branch_dir(branch_id) / CLONE
    try:
        clone_tree(data, clone, owner=own_account(), skip=RUNNING_FILES)
        yield clone
    finally:
        remove_tree(clone)


def forget_clones(branches: Iterable[str]) -> None:
    """Remove what an attempt that was cut off has left in the branches' directories."""
    for branch_id in branches:
        remove_tree(branch_dir(branch_id) / CLONE)


def running_endpoints(operation: Operation) -> Mapping[str, Endpoint]:
    """The active endpoints of the operation's project, by their branches."""
    found = Endpoint.objects.select_related(*START_RELATIONS).filter(
        project_id=operation.project_id, deleted_at=None, current_state=EndpointState.ACTIVE
    )
    return {endpoint.branch_id: endpoint for endpoint in found}


def mark(
    operation: Operation,
    details: MoveProjectDetails,
    starts: StartComputeDetails = NOT_MOVING,
) -> None:
    """Store the details of the operation, and of those that start the endpoints on the other host.
    Raises Cancelled if the operation was cancelled."""
    with locked_project(operation.project_id):
        row = Operation.objects.get(id=operation.id)
        if row.status != OperationStatus.RUNNING:
            raise Cancelled
        row.details = operation.details = details.as_json()
        row.save(update_fields=["details"])
        _tell_clients(operation, starts)


def _tell_clients(operation: Operation, details: StartComputeDetails) -> None:
    """Store the details of the operations that start the endpoints on the other host. That `status`
    is written too makes the database notify the proxies."""
    starts = Operation.objects.filter(
        chain=operation.chain, action=Action.START_COMPUTE, status__in=UNFINISHED
    )
    news = starts.exclude(details=details.as_json())
    news.update(details=details.as_json(), status=F("status"))


def have_them_started(operation: Operation, now: datetime) -> None:
    """The endpoints whose computes the move has stopped start on the other host at once: somebody
    waits for most of them. The caller has given the project to that host."""
    for endpoint in running_endpoints(operation).values():
        enter(operation.project, endpoint, EndpointState.IDLE, now=now, operations=[operation])
        # What SQL changed last is read from the compute on the other host.
        Branch.objects.filter(id=endpoint.branch_id).update(catalog_mark=CATALOG_UNREAD)
    Operation.objects.filter(
        chain=operation.chain, action=Action.START_COMPUTE, status__in=MAY_SUCCEED
    ).update(details={}, lane=Lane.WAKES)


def run_again(operation: Operation) -> None:
    """Run the computes of all active endpoints of the project on this host, which it has not left,
    and let their clients in. May be called again after a crash."""
    with patience(RESUME_TIMEOUT, cancelled=threading.Event()):
        for endpoint in running_endpoints(operation).values():
            if compute.running_endpoint(endpoint.branch_id) == endpoint.id:
                compute.accept_clients(endpoint.id)
            else:
                _start_again(operation, endpoint)
    with locked_project(operation.project_id):
        _tell_clients(operation, NOT_MOVING)


def _start_again(operation: Operation, endpoint: Endpoint) -> None:
    states: Sequence[EndpointState] = (EndpointState.IDLE, EndpointState.ACTIVE)
    try:
        start(operation, endpoint)
    except psycopg.Error as error:
        # It runs; `catalog_mending` applies its catalog.
        log.warning("catalog not applied", extra={"endpoint": endpoint.id, "error": str(error)})
    except Exception:
        log.exception("compute not started again", extra={"endpoint": endpoint.id})
        states = states[:1]
    # Another run: proxies tell it from the one that has ended.
    with locked_project(operation.project_id) as project:
        living = Endpoint.objects.filter(id=endpoint.id, deleted_at=None).first()
        if living is not None:
            for state in states:
                enter(project, living, state, now=clock.now(), operations=[operation])
