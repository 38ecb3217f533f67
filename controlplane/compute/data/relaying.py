"""Sockets for programs of Postgres that run under a branch's account.

A compute admits the platform's role only from accounts of the platform (`state_directory`), since
its own account also opens what clients name, by `dblink` and foreign servers. A program that reads
a compute under the branch's account, because its answers are untrusted, gets a relay to it.
"""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute.data.branch_data import grant_access
from controlplane.compute.host.accounts import Account, is_served_by, own_account, set_owner
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.listener_socket import SOCKET, port_of
from controlplane.compute.host.patience import readable

PREFIX = "relay-"
_CHUNK_SIZE = 256 << 10
WRITE_TIMEOUT = 30.0  # seconds, also of the connect


@contextmanager
def listening_socket(sockets: Path, account: Account) -> Iterator[socket.socket]:
    """Make the directory, and a socket of Postgres's name in it that only the account can connect
    to. Raises OSError."""
    sockets.mkdir(mode=0o700)
    grant_access(sockets, account)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = sockets / SOCKET
        listener.bind(str(path))
        set_owner(path, Account(own_account().uid, account.gid))
        path.chmod(0o660)
        listener.listen(1)
        yield listener


@contextmanager
def relay_directory(compute: Path, account: Account) -> Iterator[Path]:
    """The directory of a socket that leads, for one connection of a program of the account, to the
    compute that listens in `compute`, as a connection of the platform's.

    The compute's processes have the same account, so the directory's name is a secret: whoever
    starts the program passes it by the environment. Raises OSError.
    """
    place = Path(settings.SOCKET_DIR) / f"{PREFIX}{secrets.token_hex(16)}"
    try:
        with listening_socket(place, account) as listener:
            sockets = [listener]
            carrier = threading.Thread(target=_relay_one, args=(sockets, compute), daemon=True)
            carrier.start()
            try:
                yield place
            finally:
                # The program has ended. This ends an `accept` that nothing has answered, and writes
                # to a compute that does not read.
                for one in sockets:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                carrier.join()
    finally:
        remove_tree(place)


def _relay_one(sockets: list[socket.socket], compute: Path) -> None:
    """Accept one connection, and carry it until either side ends. `sockets` has the listener, and
    gets the others."""
    with suppress(OSError):
        client, _ = sockets[0].accept()
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            sockets += [client, server]
            # A compute that was taken over may accept nothing, or not read.
            for one in (client, server):
                one.settimeout(WRITE_TIMEOUT)
            server.connect(str(compute / f".s.PGSQL.{port_of(compute)}"))
            if not is_served_by(server, compute):
                return
            while True:
                for source in readable(client, server):
                    data = source.recv(_CHUNK_SIZE)
                    if not data:
                        return
                    # A client of Postgres reads what it asked for before it sends more than fits.
                    (server if source is client else client).sendall(data)
