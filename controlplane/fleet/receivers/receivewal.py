"""Receives the log of a branch of another host as it is written, by a `pg_receivewal` of Postgres.

    branches/lr-…/log/          the segments; owner: the account number of this reception
    branches/lr-…/receive.log   what pg_receivewal says
    branches/lr-…/processes     the processes that belong to it
    sockets/lr-…/               where pg_receivewal finds the compute: a carrier listens there

The **carrier** takes the connection to the compute's host (`fleet.receivers.log_carrier`). Both
processes outlive the worker. The carrier holds the lock with the name of the reception for as long
as it lives.
"""

import fcntl
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.compute.data.branch_data import branch_dir, grant_access
from controlplane.compute.data.relaying import listening_socket
from controlplane.compute.host.account_numbers import new_account
from controlplane.compute.host.accounts import Account, launch, set_owner
from controlplane.compute.host.binaries import postgres_bin
from controlplane.compute.host.filesystem import (
    Listing,
    LockTimeout,
    forget_lock,
    lock_branches,
    remove_tree,
)
from controlplane.compute.host.logs import open_log
from controlplane.compute.host.reaping import reap
from controlplane.compute.host.tree import REGULAR, SEGMENT, open_directory, size_on_disk, start_of
from controlplane.compute.host.wal import segment_start
from controlplane.compute.processes.occupants import kill
from controlplane.compute.settings.configuration import PLATFORM_ROLE, REGION_SLOT

# Milliseconds after which Postgres ends the connection if the receiver does not answer, and the
# seconds between the receiver's answers.
SENDER_TIMEOUT_MS, STATUS_INTERVAL = 2500, 1
PARTIAL = ".partial"
_PROCESSES = "processes"
_receptions = Listing(lambda name: name.startswith("lr-"))
# The receptions that `receptions.look_after_received` may remove when the disk is short.
removable: frozenset[str] = frozenset()

# Starts the carrier with a listener, which it accepts one connection from, and a descriptor that it
# keeps open while it lives. Returns once it is connected. Raises OSError.
StartCarrier = Callable[[socket.socket, int], "subprocess.Popen[bytes]"]


def log_of(receiver_id: str) -> Path:
    """The directory of the segments."""
    return branch_dir(receiver_id) / "log"


def reception_ids() -> list[str]:
    """The ids of all receptions that have a directory on this host."""
    return sorted(_receptions.names(Path(settings.STATE_DIR) / "branches"))


def receive(receiver_id: str, major: int, start_carrier: StartCarrier) -> None:
    """Begin to receive the log of a compute of the major version. Raises LockTimeout,
    PostgresUnusable, AccountUnusable, OSError."""
    program = postgres_bin(major) / "pg_receivewal"
    account = _make(receiver_id)
    place, sockets = branch_dir(receiver_id), _sockets(receiver_id)
    with listening_socket(sockets, account) as listener, _lock(receiver_id) as lock:
        carrier = start_carrier(listener, lock)
        _note_process(place, carrier)
        command: list[Path | str] = [
            program,
            *("--directory", log_of(receiver_id), "--slot", REGION_SLOT, "--synchronous"),
            *("--no-loop", "--no-password", "--status-interval", str(STATUS_INTERVAL)),
            *("--dbname", _conninfo(receiver_id, sockets)),
        ]
        words = open_log(place / "receive.log")
        try:
            receiver = launch(account, command, stdout=words, stderr=words)
        finally:
            os.close(words)
        _note_process(place, receiver)
        reap(receiver)


def end(receiver_id: str) -> None:
    """End the processes. What was received stays."""
    with suppress(FileNotFoundError):
        for line in (branch_dir(receiver_id) / _PROCESSES).read_text().splitlines():
            pid, began = json.loads(line)
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == began:
                    kill([process])


def remove(receiver_id: str) -> None:
    """End the processes, and remove what was received. Raises OSError, LockTimeout."""
    end(receiver_id)
    with lock_branches(receiver_id):
        remove_tree(_sockets(receiver_id))
        remove_tree(branch_dir(receiver_id))
        forget_lock(receiver_id)


def segments_in(log: int) -> list[str]:
    """The names of the segments in the open directory, in their order. The last one may be one that
    was received in part."""
    return sorted(one for one in os.listdir(log) if SEGMENT.fullmatch(one.removesuffix(PARTIAL)))


def opened(name: str, log: int) -> int:
    """Open a segment in the directory. Raises OSError."""
    return os.open(name, REGULAR, dir_fd=log)


def prune(receiver_id: str, until: int) -> None:
    """Remove the complete segments before the one with the position. Raises OSError."""
    with open_directory(log_of(receiver_id)) as log:
        for name in os.listdir(log):
            if SEGMENT.fullmatch(name) and start_of(name) < segment_start(until):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=log)


def size_of(receiver_id: str) -> int:
    """Bytes of the disk that the reception takes. Raises OSError."""
    return size_on_disk(branch_dir(receiver_id))


def bytes_of(receptions: Iterable[str]) -> int:
    """Bytes of the disk that the receptions take. Those that cannot be read count as none."""
    total = 0
    for receiver_id in receptions:
        with suppress(OSError):
            total += size_of(receiver_id)
    return total


def _make(receiver_id: str) -> Account:
    place = branch_dir(receiver_id)
    with lock_branches("accounts"):
        place.mkdir(mode=0o700)
        account = new_account(place.parent)
        grant_access(place, account)
    log_of(receiver_id).mkdir(mode=0o700)
    set_owner(log_of(receiver_id), account)
    return account


def _sockets(receiver_id: str) -> Path:
    return Path(settings.SOCKET_DIR) / receiver_id


@contextmanager
def _lock(receiver_id: str) -> Iterator[int]:
    """The open lock of the reception. A process that inherits it holds it too. Raises
    LockTimeout."""
    file = os.open(settings.STATE_DIR / "locks" / receiver_id, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    except BlockingIOError as error:
        raise LockTimeout(f"{receiver_id} is busy") from error
    finally:
        os.close(file)


def _conninfo(receiver_id: str, sockets: Path) -> str:
    words = {
        "host": str(sockets),
        "user": PLATFORM_ROLE,
        "application_name": receiver_id,
        "sslmode": "disable",
        "gssencmode": "disable",
        "options": f"-c wal_sender_timeout={SENDER_TIMEOUT_MS}",
    }
    return " ".join(f"{name}='{value}'" for name, value in words.items())


def _note_process(place: Path, process: "subprocess.Popen[bytes]") -> None:
    with suppress(psutil.NoSuchProcess), (place / _PROCESSES).open("a") as file:
        file.write(json.dumps([process.pid, psutil.Process(process.pid).create_time()]) + "\n")
