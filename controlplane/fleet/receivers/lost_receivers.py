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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import psycopg
from django.db import close_old_connections

from controlplane.compute import compute
from controlplane.compute.host.patience import readable
from controlplane.compute.processes.session import session, socket_dir
from controlplane.fleet.receivers import standby
from controlplane.fleet.receivers.second_hosts import note_lost
from controlplane.models import Host

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Seconds for the note that a receiver was lost, and for a walsender to end after its connection.
NOTE_TIMEOUT, END_TIMEOUT = 1.0, 3.0
WHY = "the connection to the second host was lost"


@dataclass(frozen=True)
class Attached:
    receiver_id: str
    endpoint_id: str
    # See `standby.walsender_descriptor`.
    walsender: int


# By branch, the receivers that its commits wait for (`replace`); and those of them that are being
# taken out.
_attached: dict[str, Attached] = {}
_changing = threading.Lock()
_ending: set[str] = set()
# Whether this process has looked for those that an earlier worker has attached.
_has_looked = False
threads = ThreadPoolExecutor(8, thread_name_prefix="log-receivers")
# Each of `threads` may wait for a note, so notes have threads of their own.
notes = ThreadPoolExecutor(8, thread_name_prefix="lost-receivers")


def watch_receivers(host: Host) -> None:
    """Take out the receivers whose connections have ended."""
    global _has_looked
    if not _has_looked:
        for branch_id, endpoint_id in compute.running_branches().items():
            if endpoint_id is not None and standby.receiver_named(branch_id) is not None:
                threads.submit(closing(_find_again), branch_id, endpoint_id)
        _has_looked = True
    with _changing:  # no descriptor is closed meanwhile
        ended = [one for one in _attached.items() if standby.has_ended(one[1].walsender)]
    for branch_id, attached in ended:
        if attached.receiver_id not in _ending:
            _ending.add(attached.receiver_id)
            threads.submit(closing(_take_out), branch_id, attached)


def take_out_ended(receiver_id: str) -> None:
    """Take out the receiver if commits wait for it and its walsender has ended, or does so within
    END_TIMEOUT seconds. Raises LockTimeout, OSError."""
    for branch_id, endpoint_id in compute.running_branches().items():
        if endpoint_id is not None and standby.receiver_named(branch_id) == receiver_id:
            try:
                walsender = standby.walsender_descriptor(socket_dir(endpoint_id), receiver_id)
            except psycopg.Error:
                return  # the compute ends too
            if walsender is None or _ends(walsender):
                _go_on_without(branch_id, endpoint_id, receiver_id)


def is_attached(branch_id: str, endpoint_id: str) -> bool:
    """Whether commits of the endpoint's compute wait for a receiver, as far as this worker
    knows."""
    with _changing:
        one = _attached.get(branch_id)
        if one is None or one.endpoint_id != endpoint_id:
            return False
        return not standby.has_ended(one.walsender)


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
    if receiver_id is None:
        return
    try:
        walsender = standby.walsender_descriptor(socket_dir(endpoint_id), receiver_id)
        if walsender is None:
            _go_on_without(branch_id, endpoint_id, receiver_id)
            return
    except (psycopg.Error, OSError) as error:
        # `log_receivers.hold_durability` tries again.
        fields = {"branch": branch_id, "error": str(error)}
        log.warning("receiver not found again", extra=fields)
        return
    with _changing:
        # It may have been attached again meanwhile.
        is_new = (
            _attached.setdefault(branch_id, found := Attached(receiver_id, endpoint_id, walsender))
            is found
        )
    if not is_new:
        os.close(walsender)


def _take_out(branch_id: str, one: Attached) -> None:
    """Another receiver may be attached meanwhile."""
    try:
        if compute.running_endpoint(branch_id) == one.endpoint_id:
            _go_on_without(branch_id, one.endpoint_id, one.receiver_id)
        replace(branch_id, None, instead_of=one)
    finally:
        _ending.discard(one.receiver_id)


def _go_on_without(branch_id: str, endpoint_id: str, receiver_id: str) -> None:
    """Let commits go on without the receiver, and say so if the compute goes on. Raises
    LockTimeout, OSError."""
    is_serving = False
    with suppress(psycopg.Error), session(socket_dir(endpoint_id), bound=1.0) as connection:
        is_serving = connection.execute("SELECT 1").fetchone() == (1,)
    if is_serving:
        # Before any commit is acknowledged that only this host has, if the database answers.
        noting = notes.submit(closing(note_lost), receiver_id, WHY)
        with suppress(Exception):
            noting.result(NOTE_TIMEOUT)
    standby.name_standby(branch_id, None, instead_of=receiver_id)
    if is_serving:
        note_lost(receiver_id, WHY)


def _ends(walsender: int) -> bool:
    """Wait for the end of the process with this descriptor, and close that."""
    try:
        return bool(readable(walsender, timeout=END_TIMEOUT))
    finally:
        os.close(walsender)
