"""Receives projects that other hosts' workers move here (`project_move`), in the worker. What they
ask about logs is answered by `receptions`.

The proxy of this host has recognized the other host by its certificate, and passes its connection
on to the worker's socket, after one line with that host's name. What is received belongs to nobody
until the operation ends: the project's row still names the other host.
"""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import close_old_connections

from controlplane.compute import compute
from controlplane.compute.data.state_directory import identity
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.patience import OutOfPatience, patience, remaining
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.processes.process import StartFailed
from controlplane.fleet.messages import SILENCE_TIMEOUT, Link, LinkBroken, MoveRefused
from controlplane.fleet.moving.receiving import (
    Following,
    receive_branch,
    receive_unlogged_files,
    remove_received,
)
from controlplane.fleet.receivers import receptions
from controlplane.models import (
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    Host,
    Operation,
    OperationStatus,
)
from controlplane.operations.actions.computes import START_RELATIONS, StartRefused, run_compute
from controlplane.operations.actions.words import failure_message
from controlplane.operations.details import MoveProjectDetails
from controlplane.operations.own_host import is_own
from controlplane.operations.rounds.at_rest import active

log = logging.getLogger(__name__)

_MAX_NAME_LENGTH = 256
# Seconds that a connection waits for the branches, which an earlier one may still hold.
_LOCK_TIMEOUT = 30.0
# Connections that are served at once.
_MAX_CONNECTIONS = 16
# Problems that another attempt would find too. Others may pass: a branch that is busy, a standby
# that has died.
_FINAL = (MoveRefused, NotEnoughSpace, AccountUnusable, PostgresUnusable, TreeUntrusted)
_places = threading.BoundedSemaphore(_MAX_CONNECTIONS)


def receiver_socket() -> Path:
    return Path(settings.SOCKET_DIR) / "moves"


def begin_receiving(host: Host) -> None:
    """Accept connections from now on, in threads of their own."""
    path = receiver_socket()
    path.parent.mkdir(mode=0o711, exist_ok=True, parents=True)
    # Whoever ran before has left it, and no longer listens.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(_MAX_CONNECTIONS)
    threading.Thread(
        target=_accept, args=(listener, host.id), name="receiving-moves", daemon=True
    ).start()


def connect_to_receiver() -> int:
    """Open a connection to this host's worker. Returns its descriptor, which the caller closes.
    Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(receiver_socket()))
        return connection.detach()


def _accept(listener: socket.socket, host_id: str) -> None:
    while True:
        connection, _ = listener.accept()
        _places.acquire()
        threading.Thread(target=_serve, args=(connection, host_id), daemon=True).start()


def _serve(connection: socket.socket, host_id: str) -> None:
    link = Link(connection)
    try:
        with active(), closing(link), patience(SILENCE_TIMEOUT):
            sender = _line(connection)
            try:
                _answer(link, sender, host_id)
            except OutOfPatience:
                raise
            except Exception as error:
                if not isinstance(error, (MoveRefused, LinkBroken)):
                    log.exception("move not received", extra={"host": sender})
                kind = "refused" if isinstance(error, _FINAL) else "interrupted"
                with suppress(LinkBroken):
                    link.send_last(**{kind: failure_message(error)})
                if isinstance(error, LinkBroken):
                    raise
    except (LinkBroken, OutOfPatience, OSError) as error:
        log.warning("move cut off", extra={"error": str(error)})
    finally:
        close_old_connections()
        _places.release()


def _line(connection: socket.socket) -> str:
    """Read the first line and nothing behind it."""
    found = bytearray()
    while True:
        try:
            one = connection.recv(1)
        except TimeoutError:
            remaining()
            continue
        if one == b"\n":
            break
        found += one
        if not one or len(found) > _MAX_NAME_LENGTH:
            raise LinkBroken("the proxy has not said which host it is")
    return found.decode()


def _answer(link: Link, sender: str, host_id: str) -> None:
    request = link.receive()
    if receptions.answer(link, request, sender, host_id):
        return
    is_discard = "discard" in request
    operation = _moving(str(request.get("discard") or request.get("move")), sender, host_id)
    branches = list(
        Branch.objects.filter(project_id=operation.project_id).values_list("id", flat=True)
    )
    with lock_branches(*branches, timeout=_LOCK_TIMEOUT):
        # An earlier attempt may have held the branches until now.
        _moving(str(operation.id), sender, host_id, is_running=not is_discard)
        if is_discard:
            for branch_id in branches:
                remove_received(branch_id)
            link.send(discarded=True)
            link.flush()
            return
        link.send(state_id=identity())
        with closing(Following()) as following:
            done = _receive(link, branches, following)
        _start_early(operation, done)


def _receive(link: Link, branches: Collection[str], following: Following) -> Mapping[str, Any]:
    """Receive the branches, and follow those whose compute runs, until that has stopped. Returns
    the last message."""
    received: set[str] = set()
    while "done" not in (message := link.receive()):
        match message:
            case {"branch": str(branch_id)}:
                if branch_id not in branches or branch_id in received:
                    raise LinkBroken("the other host has sent a branch of another project")
                receive_branch(link, branch_id, received, following)
                received.add(branch_id)
                link.send(received=branch_id)
            case {"log": str()}:
                following.receive_log(link, message)
            case {"start": str(branch_id), "needed": dict(needed)}:
                following[branch_id].start(needed)
                link.send(started=branch_id)
            case {"replayed": str(branch_id)}:
                link.send(replayed=following[branch_id].replayed())
            case {"checkpoint": str(branch_id)}:
                following[branch_id].write_checkpoint()
                link.send(written=branch_id)
            case {"finish": str(branch_id), "begin": int(begin), "end": int(end)}:
                following[branch_id].finish(begin, end)
                receive_unlogged_files(link, branch_id)
                link.send(whole=branch_id)
            case _:
                raise LinkBroken("the other host has sent an unknown message")
    return message


def _start_early(operation: Operation, done: Mapping[str, Any]) -> None:
    """Start the computes that ran on the other host, at the moment at which it gives the project to
    this one. Until the rows say so nobody is led to them, and the operations that start them find
    them running. If the project stays there, they are removed with the branches."""
    endpoints = Endpoint.objects.select_related(*START_RELATIONS).filter(
        project_id=operation.project_id,
        deleted_at=None,
        id__in=[str(one) for one in done.get("start", ())],
    )
    for endpoint in endpoints:
        try:
            run_compute(endpoint, compute.start)
        except (StartRefused, StartFailed, OutOfPatience, psycopg.Error) as error:
            # Its own operation tries again.
            log.warning("not started early", extra={"endpoint": endpoint.id, "error": str(error)})


def _moving(operation_id: str, sender: str, host_id: str, *, is_running: bool = False) -> Operation:
    """The unfinished operation that moves a project from the sender to this host. Raises
    MoveRefused."""
    try:
        found = Operation.objects.filter(
            id=uuid.UUID(operation_id), action=Action.MOVE_PROJECT, status__in=UNFINISHED
        )
    except (ValueError, ValidationError) as error:
        raise MoveRefused("there is no such operation") from error
    operation = found.select_related("project").first()
    host = Host.objects.filter(id=host_id).first()
    if (
        operation is None
        or operation.project.host_id != sender
        or MoveProjectDetails.from_json(operation.details).to != host_id
        or (is_running and operation.status != OperationStatus.RUNNING)
        or host is None
        or not is_own(host)
    ):
        raise MoveRefused("the project is not being moved from that host to this one")
    return operation
