"""Lets the commits of a project wait for a second host, if its durability is "region": this host's
side, which has the computes (`receptions` is the other one's).

    attach       before a start lets clients in, and by a round: a second host begins to receive the
                 log, and once it has all of it, commits wait for it
    watch        takes a receiver out whose connection has ended (`lost_receivers`). Postgres itself
                 ends the connection of one that does not answer
    hold         every two seconds: attaches what is not attached, detaches what need not be
    forget       removes the rows of receivers whose log the store has: their hosts then remove it

What the receiver gets begins where the store has the log. So the store's base copy, its log and the
received log together have every commit.
"""

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore

import psycopg
from django.db.models import Exists, Max, OuterRef

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import takes_long_to_copy
from controlplane.compute.host.accounts import is_served_by
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.listener_socket import port_of
from controlplane.compute.host.patience import OutOfPatience, patience
from controlplane.compute.host.steps import step
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import REGION_SLOT
from controlplane.compute.slots import drop_slot, has_slot
from controlplane.fleet.messages import LinkBroken, MoveRefused
from controlplane.fleet.receivers import standby
from controlplane.fleet.receivers.lost_receivers import (
    WHY,
    Attached,
    closing,
    is_attached,
    replace,
    watch,
)
from controlplane.fleet.receivers.second_hosts import (
    ask_to_receive,
    forget_reduced,
    note_losses,
    record_reduced,
    second_hosts,
)
from controlplane.fleet.receivers.standby import NotAttached
from controlplane.history.keeping import keep
from controlplane.history.local.chain import holding_history, open_chain
from controlplane.history.local.pulling import pull_running
from controlplane.history.retention import allowed_bytes
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    Durability,
    Endpoint,
    EndpointState,
    HistoryChain,
    Host,
    LogReceiver,
    Operation,
)
from controlplane.operations.actions.words import failure_message
from controlplane.operations.locks import apart
from controlplane.operations.rounds.looks import look_at_each

log = logging.getLogger(__name__)

# Seconds that the clients of a starting compute wait for a second host at most.
ATTACH_TIMEOUT = 5.0
LOCK_TIMEOUT = 2.0
# Copy to the store what it lacks of branches; `_copying` has those whose copy is under way. Of one
# account there are at most two: each may take hours.
copies = ThreadPoolExecutor(8, thread_name_prefix="copies-to-store")
_copying: set[str] = set()
_of_account: defaultdict[int, Semaphore] = defaultdict(lambda: Semaphore(2))


@dataclass(frozen=True)
class StoredLog:
    """What the store has of the log of a branch's present data."""

    # The log is complete up to here, and a base copy is there from which it can be replayed.
    end: int
    # Whether this is all.
    is_all: bool


def _no_store(branch: Branch) -> StoredLog | None:
    return None


# Copies what the store lacks of a branch. Returns None if it cannot be restored from there.
# `history.store.received_logs` sets it.
copy_to_store: Callable[[Branch], StoredLog | None] = _no_store


def attach(endpoint: Endpoint, *, serves: bool = False) -> None:
    """Let the commits of the running compute wait for a second host, if its project wants that. It
    goes on without one if there is none within ATTACH_TIMEOUT seconds; an event says why. `serves`
    says that it has clients already. The caller holds the branch's lock."""
    if not endpoint.project.waits_for_second_host:
        if has_slot(endpoint.branch_id, REGION_SLOT):
            # The setting was changed while no compute ran.
            with suppress(psycopg.Error):
                _detach(endpoint.branch_id)
        return
    if is_attached(endpoint.branch_id, endpoint.id):
        return
    with step("attaching_second_host") as part:
        try:
            with patience(ATTACH_TIMEOUT):
                part.detail["host"] = _attach(endpoint, serves=serves)
        except (NotAttached, OutOfPatience, LockTimeout, LinkBroken, MoveRefused) as error:
            _go_on_without(endpoint, str(error))
        except (psycopg.Error, OSError) as error:
            _go_on_without(endpoint, failure_message(error))


def _go_on_without(endpoint: Endpoint, why: str) -> None:
    # Without a receiver it would only keep log.
    with suppress(psycopg.Error):
        drop_slot(endpoint.branch_id, socket_dir(endpoint.id), REGION_SLOT)
    _let_go_on(endpoint.branch_id, why)
    record_reduced(endpoint.branch_id, why)


def _let_go_on(branch_id: str, why: str) -> None:
    """Let commits wait for no receiver, once that is noted."""
    note_losses(branch_id, why)
    standby.name_standby(branch_id, None)


def hold_durability(host: Host) -> None:
    """Attach and detach receivers as the projects' settings say."""
    active = Endpoint.objects.filter(
        host=host,
        project__host=host,
        project__settings__durability=Durability.REGION,
        deleted_at=None,
        current_state=EndpointState.ACTIVE,
    ).select_related("project__host", "branch")
    branches = [one.branch_id for one in active]
    open_chains = HistoryChain.objects.filter(branch__in=branches, ended_at=None)
    with_history = set(open_chains.values_list("branch_id", flat=True))
    due = [
        one
        for one in active
        if one.branch_id not in with_history or not is_attached(one.branch_id, one.id)
    ]

    def look(endpoint_id: str) -> None:
        endpoint = next(one for one in due if one.id == endpoint_id)
        branch_id = endpoint.branch_id
        with suppress(LockTimeout), lock_branches(branch_id, timeout=0):
            if compute.running_endpoint(branch_id) != endpoint.id:
                return
            # The store would get none of the log, and the second host could remove none.
            if is_attached(branch_id, endpoint.id) and open_chain(branch_id) is None:
                _let_go_on(branch_id, "its history has ended")
                replace(branch_id, None)
            attach(endpoint, serves=True)

    for _ in look_at_each(due, look, at="second host"):
        pass
    unwanted = LogReceiver.objects.filter(branch__host=host).exclude(
        branch__project__settings__durability=Durability.REGION
    )
    for branch_id in unwanted.values_list("branch_id", flat=True).distinct():
        with apart(branch_id):
            _detach(branch_id)


def forget_receivers(host: Host) -> None:
    """Remove the rows of receivers of this host's branches that no restore needs any more."""
    # A branch that is still to be restored from what they have may have older data here.
    restores = Operation.objects.filter(
        branch=OuterRef("branch"), action=Action.RESTORE_FROM_STORE, status__in=UNFINISHED
    )
    rows = LogReceiver.objects.filter(~Exists(restores), branch__host=host)
    for row in rows.select_related("branch__project"):
        branch = row.branch
        is_gone = branch.deleted_at is not None or branch.project.deleted_at is not None
        # It may be started meanwhile, which then needs another receiver anyway.
        with apart(branch.id):
            if is_gone or _is_all_stored(branch):
                LogReceiver.objects.filter(id=row.id).delete()


def _is_all_stored(branch: Branch) -> bool:
    """Whether the branch's compute does not run and the store has all that it has written."""
    endpoints = Endpoint.objects.filter(branch=branch, deleted_at=None)
    if endpoints.exclude(current_state=EndpointState.IDLE).exists():
        return False
    if compute.running_endpoint(branch.id) is not None:
        return False
    stopped_at = endpoints.aggregate(at=Max("suspended_at"))["at"]
    chains = HistoryChain.objects.filter(branch=branch)
    if stopped_at and chains.exists() and not chains.filter(updated_at__gt=stopped_at).exists():
        # The history does not have the last log yet.
        return False
    try:
        stored = copy_to_store(branch)
    except NotAttached:
        return False
    return stored is not None and stored.is_all


def connect_to_source(receiver_id: str, host_id: str) -> int | None:
    """Open a connection to the compute whose log the receiver gets, for the other host that asks;
    returns its descriptor, which the caller closes. None if that host has no such receiver, or the
    compute does not run. Raises OSError."""
    row = LogReceiver.objects.filter(id=receiver_id, host=host_id).first()
    runs_for = compute.running_endpoint(row.branch_id) if row else None
    if runs_for is None:
        return None
    sockets = socket_dir(runs_for)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(sockets / f".s.PGSQL.{port_of(sockets)}"))
        return connection.detach() if is_served_by(connection, sockets) else None


def _attach(endpoint: Endpoint, *, serves: bool) -> str:
    """Returns the second host. Raises NotAttached, and what the parts raise."""
    sockets, named = socket_dir(endpoint.id), standby.receiver_named(endpoint.branch_id)
    for row in LogReceiver.objects.filter(id=named, lost_at=None):
        # An earlier worker, or an earlier attempt, has attached it.
        if walsender := standby.walsender_descriptor(sockets, row.id):
            watch(endpoint.branch_id, Attached(row.id, endpoint.id, walsender))
            return str(row.host_id)
    # Clients that commit may not have to wait until another one is attached. After a restart they
    # do: the former receiver has all that was acknowledged before, and gets nothing more.
    if serves:
        _let_go_on(endpoint.branch_id, WHY)
    hosts = second_hosts(endpoint.project)
    if endpoint.branch_id in _copying:
        raise NotAttached("its history is still being copied to the store")
    start = _begin_to_hold_log(endpoint.branch, sockets)
    stored = _copied(endpoint.branch)
    if stored is None or stored.end < start:
        raise NotAttached("its history is not in the store yet")
    return _attach_first(endpoint, hosts)


def _copied(branch: Branch) -> StoredLog | None:
    """Copy what the store lacks of the branch. A copy that takes longer than ATTACH_TIMEOUT goes
    on, and no other one of the branch begins meanwhile. Raises NotAttached."""
    until = time.monotonic() + ATTACH_TIMEOUT
    of_account = _of_account[branch.project.account_id]
    if not of_account.acquire(timeout=ATTACH_TIMEOUT):
        raise NotAttached("other branches of its account are still being copied to the store")
    _copying.add(branch.id)
    copy = copies.submit(closing(copy_to_store), branch)
    copy.add_done_callback(lambda _: _copying.discard(branch.id))
    copy.add_done_callback(lambda _: of_account.release())
    try:
        return copy.result(until - time.monotonic())
    except TimeoutError:
        raise NotAttached("the store does not answer in time") from None


def _begin_to_hold_log(branch: Branch, sockets: Path) -> int:
    """Returns the position from which on a receiver gets the log. Raises NotAttached, LockTimeout,
    psycopg.Error, OSError."""
    if open_chain(branch.id) is None and not takes_long_to_copy(branch.id):
        # A branch that has not run before has no base copy yet.
        retention, room = branch.project.history_retention_seconds, allowed_bytes(branch)
        keep(branch.id, retention, room=room)
    with holding_history(branch.id, timeout=LOCK_TIMEOUT):
        chain = open_chain(branch.id)
        if chain is None:
            raise NotAttached("its history has no base copy yet")
        # The store gets what is flushed by now.
        pull_running(chain, branch.id, sockets)
        return standby.begin_to_hold_log(branch.id, sockets)


def _attach_first(endpoint: Endpoint, hosts: list[Host]) -> str:
    failure: Exception | None = None
    for host in hosts:
        row = LogReceiver.objects.create(branch=endpoint.branch, host=host)
        try:
            ask_to_receive(row)
            walsender = standby.attach(
                endpoint.branch_id, socket_dir(endpoint.id), row.id, timeout=ATTACH_TIMEOUT
            )
        except Exception as error:
            failure = error
            if standby.receiver_named(endpoint.branch_id) == row.id:
                _let_go_on(endpoint.branch_id, WHY)
            row.delete()
            fields = {"branch": endpoint.branch_id, "host": host.id, "error": str(error)}
            log.warning("second host does not receive", extra=fields)
            continue
        watch(endpoint.branch_id, Attached(row.id, endpoint.id, walsender))
        return str(host.id)
    assert failure is not None
    raise failure


def _detach(branch_id: str) -> None:
    """Let commits wait for no other host any more, as the project's settings say. What the receiver
    of a compute that does not run has is removed once the store has it (`forget_receivers`)."""
    endpoint_id = compute.running_endpoint(branch_id)
    if endpoint_id is not None:
        rows = LogReceiver.objects.filter(branch=branch_id)
        rows.filter(lost_at=None).update(lost_at=clock.now())
        standby.name_standby(branch_id, None)
        # If this fails, the rows stay, and the round tries again.
        drop_slot(branch_id, socket_dir(endpoint_id), REGION_SLOT)
        rows.delete()
    forget_reduced(branch_id)
    replace(branch_id, None)
