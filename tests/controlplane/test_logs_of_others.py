"""The log of a branch is given to nobody but the host that receives it, and what was received to
nobody but the host that the branch's project lives on. Other hosts of the region ask in vain."""

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.door import SOCKET
from controlplane.compute.moving.links import Link, MoveRefused
from controlplane.management import log_carrier
from controlplane.models.log_receiver import new_receiver_id
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.wire.peer_tls import load_or_create_peer_certificate
from controlplane.proxy.wire.startup import PEER_REQUEST
from tests.support.place import Place
from tests.support.second_host import NAME, SecondHost
from tests.support.stack import Stack

FIRST = "local"


@contextmanager
def passed_on(stack: Stack, second: SecondHost, header: PassedOn) -> Iterator[Path]:
    """A directory with a socket that leads from the second host to the first, as `header` says."""
    with stack.database() as database:
        found: Any = database.execute(
            "SELECT peer_port, peer_certificate FROM controlplane_host WHERE id = %s", [FIRST]
        )
        port, trusted = found.fetchone()
    own = load_or_create_peer_certificate(second.stack.state_dir / "tls")
    directory = second.stack.state_dir / "carried"
    directory.mkdir(exist_ok=True)
    (directory / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / SOCKET))
        listener.listen(1)
        request = {
            "address": "localhost",
            "port": port,
            "certificate": own.certificate,
            "key": own.key,
            "trusted": trusted,
            "sent": [base64.b64encode(one).decode() for one in (PEER_REQUEST, header.encoded())],
            "accepted": base64.b64encode(ACCEPTED).decode(),
            "listener": listener.fileno(),
        }
        with subprocess.Popen(
            [sys.executable, "-I", log_carrier.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        ) as carrier:
            assert carrier.stdin is not None
            assert carrier.stdout is not None
            try:
                carrier.stdin.write(json.dumps(request).encode())
                carrier.stdin.close()
                assert carrier.stdout.readline() == b"ready\n"
                yield directory
            finally:
                carrier.kill()


def receiver(stack: Stack, place: Place, host: str) -> str:
    """Let the host be to receive the log of the project's branch. Returns the receiver's id."""
    receiver_id = new_receiver_id()
    with stack.database() as database:
        database.execute(
            "INSERT INTO controlplane_logreceiver (id, branch_id, host_id, created_at)"
            " VALUES (%s, %s, %s, now())",
            [receiver_id, place.branch_id, host],
        )
    return receiver_id


def identified(stack: Stack, second: SecondHost, receiver_id: str) -> Any:
    """What the compute says to the second host, which asks it for its log."""
    header = PassedOn(kind=Kind.LOG, client_address="127.0.0.1", receiver=receiver_id)
    with (
        passed_on(stack, second, header) as directory,
        psycopg.connect(
            f"host={directory} user={PLATFORM_ROLE} replication=true sslmode=disable",
            autocommit=True,
        ) as connection,
    ):
        return connection.pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 1)


def test_a_host_gets_only_the_log_that_it_is_to_receive(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    assert identified(stack, second, receiver(stack, place, NAME)) == b"1"
    another = receiver(stack, place, FIRST)
    with pytest.raises(psycopg.OperationalError):
        identified(stack, second, another)


def test_what_was_received_is_given_to_no_host_but_the_projects(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    receiver_id = receiver(stack, place, FIRST)
    log = stack.state_dir / "branches" / receiver_id / "log"
    log.mkdir(parents=True)
    (log / "000000010000000000000001").write_bytes(b"log")
    header = PassedOn(kind=Kind.MOVE, client_address="127.0.0.1")

    def asked() -> dict[str, Any]:
        with passed_on(stack, second, header) as directory:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(str(directory / SOCKET))
            with closing(Link(connection)) as link:
                link.tell(received=receiver_id)
                return link.hear()

    with pytest.raises(MoveRefused, match="a branch that lives on yours"):
        asked()
    with stack.database() as database:
        to = "UPDATE controlplane_project SET host_id = %s WHERE id = %s"
        # Another host restores it.
        database.execute(to, [NAME, place.id])
        try:
            assert asked() == {"segment": "000000010000000000000001"}
        finally:
            database.execute(to, [FIRST, place.id])
