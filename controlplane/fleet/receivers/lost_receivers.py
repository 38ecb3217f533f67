"""Takes lost receivers of logs out, so that commits go on without them (`log_receivers`).

Two processes of the compute's host do this, and neither needs the other:

    the worker       watches the processes of the walsenders (`watch_receivers`). When it starts, it
                     looks for those that an earlier worker has attached
    the proxy        has passed the log on. When such a connection has ended, its host process calls
                     `take_out_ended`, also while no worker runs

Neither holds the branch's lock, as its holder may wait for a commit.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import psycopg
from django.db import Error, close_old_connections

from controlplane.compute import compute
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.patience import readable
from controlplane.compute.processes.recovery import read_control
from controlplane.compute.processes.session import session, socket_dir
from controlplane.fleet.receivers import standby
from controlplane.fleet.receivers.second_hosts import Elsewhere, note_attached, note_losses
from controlplane.models import Host

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Seconds for the note that a receiver was lost, for a walsender to end after its connection, and
# for a Postgres to end after its walsender if both are killed.
NOTE_TIMEOUT, END_TIMEOUT, GRACE = 1.0, 3.0, 1.0
WHY = "the connection to the second host was lost"


@dataclass
class Attached:
    receiver_id: str
    endpoint_id: str
    # See `standby.walsender_descriptor`.
    walsender: int
    # Whether its row says that commits wait for it.
    is_noted: bool = False


# By branch, the receivers that its commits wait for (`replace`); and those of them that are being
# taken out.
_attached: dict[str, Attached] = {}
_changing = threading.Lock()
_ending: set[str] = set()
# Whether this process has looked for those that an earlier worker has attached; and by branch, the
# endpoints of those that are still to be found, and from when on, by the monotonic clock.
_has_looked = False
_to_find: dict[str, tuple[str, float]] = {}
FIND_INTERVAL = 5.0  # seconds
threads = ThreadPoolExecutor(8, thread_name_prefix="log-receivers")
# A database that hangs keeps each note for long. So notes have threads of their own, and each lost
# receiver has one note under way.
notes = ThreadPoolExecutor(8, thread_name_prefix="lost-receivers")
_noting: dict[str, Future[None]] = {}


def watch_receivers(host: Host) -> None:
    """Take out the receivers whose connections have ended."""
    global _has_looked
    if not _has_looked:
        for branch_id, endpoint_id in compute.running_branches().items():
            if endpoint_id is not None and standby.receiver_named(branch_id) is not None:
                _to_find[branch_id] = endpoint_id, 0.0
        _has_looked = True
    for branch_id, (endpoint_id, due_at) in list(_to_find.items()):
        if time.monotonic() >= due_at:
            del _to_find[branch_id]
            threads.submit(closing(_find_again), branch_id, endpoint_id)
    with _changing:  # no descriptor is closed meanwhile
        ended = [one for one in _attached.items() if standby.has_ended(one[1].walsender)]
    for branch_id, attached in ended:
        if attached.receiver_id not in _ending:
            _ending.add(attached.receiver_id)
            threads.submit(closing(_take_out), branch_id, attached)


def take_out_ended(receiver_id: str) -> bool:
    """Take out the receiver if commits wait for it and its walsender has ended, or does so within
    END_TIMEOUT seconds. False if this is to be called again: the compute recovers from a crash.
    Raises django.db.Error, LockTimeout, OSError, and is to be called again."""
    for branch_id, endpoint_id in compute.running_branches().items():
        if endpoint_id is None or standby.receiver_named(branch_id) != receiver_id:
            continue
        try:
            walsender = standby.walsender_descriptor(socket_dir(endpoint_id), receiver_id)
        except psycopg.Error:
            return _has_ended(branch_id, endpoint_id)
        if walsender is None or _ends(walsender, END_TIMEOUT):
            with suppress(Elsewhere):  # the compute is about to be stopped
                _go_on_without(branch_id, endpoint_id, receiver_id)
    return True


def is_attached(branch_id: str, endpoint_id: str) -> bool:
    """Whether commits of the endpoint's compute wait for a receiver, as far as this worker knows,
    and the rows say so."""
    with _changing:
        one = _attached.get(branch_id)
        if one is None or one.endpoint_id != endpoint_id or not one.is_noted:
            return False
        return not standby.has_ended(one.walsender)


def watch(branch_id: str, one: Attached) -> None:
    """Take the receiver, which the configuration names, out when its walsender ends; and note that
    commits wait for it. Raises django.db.Error if that cannot be noted now."""
    replace(branch_id, one)
    note_attached(one.receiver_id)
    one.is_noted = True


def replace(branch_id: str, one: Attached | None, *, instead_of: Attached | None = None) -> None:
    """Note the branch's receiver, and close what watched the one before, which nobody else does.
    With `instead_of`, do this only if that is the one before."""
    with _changing:
        before = _attached.get(branch_id)
        if instead_of is not None and before is not instead_of:
            return
        if one is None:
            _attached.pop(branch_id, None)
        else:
            _attached[branch_id] = one
    if before is not None:
        os.close(before.walsender)


def closing(do: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, for a thread of a pool."""

    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return do(*arguments, **named)
        finally:
            close_old_connections()

    return run


def _find_again(branch_id: str, endpoint_id: str) -> None:
    """Watch the receiver that an earlier worker has attached, or take it out."""
    receiver_id = standby.receiver_named(branch_id)
    if receiver_id is None or compute.running_endpoint(branch_id) != endpoint_id:
        return
    try:
        walsender = standby.walsender_descriptor(socket_dir(endpoint_id), receiver_id)
        if walsender is None:
            _go_on_without(branch_id, endpoint_id, receiver_id)
            return
    except (psycopg.Error, Error, LockTimeout, OSError) as error:
        # `log_receivers.hold_durability` tries again too, but somebody may hold the branch's lock.
        _to_find[branch_id] = endpoint_id, time.monotonic() + FIND_INTERVAL
        fields = {"branch": branch_id, "error": str(error)}
        log.warning("receiver not found again", extra=fields)
        return
    with _changing:
        # It may have been attached again meanwhile.
        found = Attached(receiver_id, endpoint_id, walsender)
        is_new = _attached.setdefault(branch_id, found) is found
    if not is_new:
        os.close(walsender)
        return
    # The worker before may have ended first.
    note_attached(receiver_id)
    found.is_noted = True


def _take_out(branch_id: str, one: Attached) -> None:
    """Another receiver may be attached meanwhile."""
    try:
        if compute.running_endpoint(branch_id) == one.endpoint_id:
            _go_on_without(branch_id, one.endpoint_id, one.receiver_id)
        replace(branch_id, None, instead_of=one)
    except (Error, Elsewhere, LockTimeout, OSError) as error:
        # The next round tries again.
        fields = {"branch": branch_id, "error": repr(error)}
        log.warning("commits wait for a lost receiver", extra=fields)
    finally:
        _ending.discard(one.receiver_id)


def _go_on_without(branch_id: str, endpoint_id: str, receiver_id: str) -> None:
    """Let the compute's commits go on without the receiver, once it is noted that they do. While
    that cannot be noted, they wait: another host may have taken the branch over, with all that the
    receiver has. Raises TimeoutError, Elsewhere, django.db.Error, LockTimeout, OSError."""
    # In this order: its configuration is written anew if it was started again meanwhile.
    if _has_ended(branch_id, endpoint_id) or standby.receiver_named(branch_id) != receiver_id:
        return
    with _changing:
        noting = _noting.get(receiver_id)
        if noting is None:
            noting = notes.submit(closing(note_losses), branch_id, WHY, of=receiver_id)
            _noting[receiver_id] = noting
    try:
        noting.result(NOTE_TIMEOUT)
    finally:
        if noting.done():
            _noting.pop(receiver_id, None)
    standby.name_standby(branch_id, None, instead_of=receiver_id)


def _has_ended(branch_id: str, endpoint_id: str) -> bool:
    """Whether it is certain that the compute acknowledges no commit any more: its Postgres has
    ended, or has shut down in order. One that does not answer may be recovering from a crash."""
    with suppress(psycopg.Error), session(socket_dir(endpoint_id), bound=1.0) as connection:
        if connection.execute("SELECT 1").fetchone() == (1,):
            return False
    with suppress(OSError):
        if read_control(data_dir(branch_id)).is_shut_down:
            return True
    run = compute.open_run(branch_id, endpoint_id)
    return compute.running_endpoint(branch_id) != endpoint_id if run is None else _ends(run, GRACE)


def _ends(process: int, timeout: float) -> bool:
    """Wait for the end of the process with this descriptor, and close that."""
    try:
        return bool(readable(process, timeout=timeout))
    finally:
        os.close(process)
