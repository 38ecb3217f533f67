"""Receives the logs of computes of other hosts (`log_receivers`), in this host's worker: answers
the worker that asks for it, and removes what is no longer needed."""

from contextlib import suppress
from typing import Any

from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.space import host_space
from controlplane.compute.host.tree import open_directory
from controlplane.fleet.messages import CHUNK_BYTES, Link, MoveRefused
from controlplane.fleet.reaching_hosts import host_links
from controlplane.fleet.receivers import receivewal
from controlplane.models import Host, LogReceiver
from controlplane.operations.locks import apart


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
    """Remove what no restore needs any more. If the disk has no room, receive no more."""
    found = receivewal.reception_ids()
    if not found:
        return
    rows = {one.id: one for one in LogReceiver.objects.filter(id__in=found, host=host)}
    is_short = host_space().is_short
    for receiver_id in found:
        row = rows.get(receiver_id)
        with suppress(LockTimeout), apart(receiver_id):
            if row is None:
                receivewal.remove(receiver_id)
                continue
            if is_short:
                receivewal.end(receiver_id)
            if row.stored_lsn:
                receivewal.prune(receiver_id, row.stored_lsn)


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
