"""Receives the logs of computes of other hosts (`log_receivers`), in this host's worker: answers
the worker that asks for it, and removes what is no longer needed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.space import host_space, size_text
from controlplane.compute.host.tree import open_directory
from controlplane.fleet.messages import CHUNK_BYTES, Link, MoveRefused, host_links
from controlplane.fleet.receivers import receivewal
from controlplane.fleet.receivers.second_hosts import note_lost
from controlplane.models import Action, Host, LogReceiver, Operation, OperationStatus
from controlplane.models.host import is_recent
from controlplane.operations.locks import apart

# Bytes that a reception may take, beside the log that the store has already. One that takes more is
# of a branch whose copy to the store does not get on, or not as fast as the branch is written to.
MAX_RECEIVED_BYTES = 4 << 30
TOO_MUCH = (
    f"it has received more than {size_text(MAX_RECEIVED_BYTES)} of log that the store does not have"
)
NO_ROOM = "the second host's disk is nearly full"


def answer(link: Link, request: dict[str, Any], sender: str, host_id: str) -> bool:
    """Answer another host's worker, if it asks for something about logs. Raises MoveRefused,
    LinkBroken, OSError."""
    if "receive" in request:
        _receive(link, str(request["receive"]), sender, host_id)
    elif "received" in request:
        _send_received(link, str(request["received"]), sender, host_id)
    else:
        return False
    link.flush()
    return True


def look_after_received(host: Host) -> None:
    """Remove what no restore needs any more; then the receptions that exceed MAX_RECEIVED_BYTES
    and, while the disk is short, the largest one. Commits then go on without this host."""
    found = receivewal.reception_ids()
    of_host = LogReceiver.objects.filter(id__in=found, host=host)
    rows = {one.id: one for one in of_host.select_related("branch__project__host")}
    sizes: dict[str, int] = {}
    for receiver_id in found:
        row = rows.get(receiver_id)
        with suppress(LockTimeout), apart(receiver_id):
            if row is None:
                receivewal.remove(receiver_id)
                continue
            if row.stored_lsn:
                receivewal.prune(receiver_id, row.stored_lsn)
            sizes[receiver_id] = receivewal.size_of(receiver_id)
    receivewal.removable = _removable([rows[one] for one in sizes])
    too_large = {one: TOO_MUCH for one, size in sizes.items() if size > MAX_RECEIVED_BYTES}
    others = receivewal.removable - too_large.keys()
    if others and host_space().is_short:
        too_large[max(others, key=sizes.__getitem__)] = NO_ROOM
    for receiver_id, why in too_large.items():
        with suppress(LockTimeout), apart(receiver_id):
            if receiver_id in receivewal.removable:
                # First, so that no commit is acknowledged as one that this host has.
                note_lost(receiver_id, why)
                receivewal.remove(receiver_id)
            else:
                receivewal.end(receiver_id)


def _removable(rows: Sequence[LogReceiver]) -> frozenset[str]:
    """The receptions of branches whose own host has all that was received. A restore may need the
    others: their host is silent or lost, or another one is still to restore them, at once or by a
    retry of what has failed."""
    restores = Operation.objects.filter(
        action=Action.RESTORE_FROM_STORE, branch__in=[row.branch_id for row in rows]
    )
    newest = {one.branch_id: one for one in restores.order_by("created_at")}

    def is_needed(row: LogReceiver) -> bool:
        restore = newest.get(row.branch_id)
        if restore is None or restore.status == OperationStatus.FINISHED:
            return False
        # Later ones are of a compute that runs: the branch has got data by other means.
        return row.created_at < restore.created_at

    return frozenset(
        row.id for row in rows if not is_needed(row) and _is_alive(row.branch.project.host)
    )


def _is_alive(host: Host) -> bool:
    is_seen = is_recent(host.worker_seen_at) or is_recent(host.proxy_seen_at)
    return host.lost_at is None and is_seen


def _receive(link: Link, receiver_id: str, sender: str, host_id: str) -> None:
    row = (
        LogReceiver.objects.select_related("branch__project__host")
        .filter(id=receiver_id, host=host_id, attached_at=None)
        .first()
    )
    if row is None or row.branch.project.host_id != sender:
        raise MoveRefused("this host is not to receive that log")
    project, carry = row.branch.project, host_links().carry_log
    try:
        receivewal.receive(
            receiver_id,
            project.pg_version,
            lambda listener, lock: carry(project.host, receiver_id, listener, lock),
        )
    except (OSError, PostgresUnusable, AccountUnusable) as error:
        raise MoveRefused(f"it cannot receive the log: {error}") from error
    link.send(receiving=True)


def _send_received(link: Link, receiver_id: str, sender: str, host_id: str) -> None:
    """Send what was received, to the host that restores the branch: its project lives there."""
    rows = LogReceiver.objects.filter(id=receiver_id, host=host_id, branch__project__host=sender)
    if not rows.exists():
        raise MoveRefused("this host has not received that log of a branch that lives on yours")
    if not receivewal.log_of(receiver_id).exists():
        raise MoveRefused("what this host has received of that log is lost")
    # Whatever it still receives belongs to a compute that was shut out.
    receivewal.end(receiver_id)
    with open_directory(receivewal.log_of(receiver_id)) as log:
        for name in receivewal.segments_in(log):
            with open(name, "rb", opener=lambda path, _: receivewal.opened(path, log)) as file:
                link.send(segment=name)
                while piece := file.read(CHUNK_BYTES):
                    link.send_bytes(piece)
                link.send_bytes(b"")
    link.send(done=True)
