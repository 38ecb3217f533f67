"""The proxy's start under an account of its own, if Perch runs as root.

`manage.py proxy` begins as root. It reads what only root can read, forks the host process
(`proxy.directory.host_calls`), becomes the proxy's account, and executes itself again. So the
processes that face the network have never had the secret key in their memory. They get the rest
through a file in memory.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from controlplane.compute.compute import let_proxy_in
from controlplane.compute.host.accounts import Account, named_account, own_account, set_owner
from controlplane.database.connection_counts import MIN_HOST_PROCESS_CONNECTIONS
from controlplane.process_accounts import (
    KINDS,
    become,
    environment_of,
    in_use,
    manage_files_as_root,
)
from controlplane.proxy.directory.host_calls import HostCalls, fork_host_process
from controlplane.proxy.settings import own_directory
from controlplane.proxy.wire.certificates import (
    Authority,
    authority_of,
    load_or_create_authority,
    private_pem,
)
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.proxy.wire.peer_tls import PeerCertificate, load_or_create_peer_certificate
from controlplane.proxy.wire.tls import OperatorIdentity

# The variable with the descriptor of the file in memory.
GIVEN = "PERCH_PROXY_GIVEN"


@dataclass(frozen=True)
class ProxyInputs:
    """What the proxy needs of the host. `authority` is None if the operator has a certificate.
    `peer` is for connections between hosts."""

    secret: bytes
    authority: Authority | None
    peer: PeerCertificate
    host: HostCalls

    def opened(self, path: Path) -> int:
        """Open one of the operator's files for `OperatorIdentity`. Raises OSError."""
        name = "open_certificate" if path == Path(settings.TLS_CERTIFICATE) else "open_key"
        try:
            return int(self.host.call(name))
        except ControlPlaneUnavailable as error:
            raise OSError(str(error)) from error


def proxy_inputs() -> ProxyInputs:
    """What this proxy needs. As root, with accounts for processes, this executes the proxy again,
    under its account. Raises AccountUnusable, OSError, ValueError."""
    if descriptor := os.environ.pop(GIVEN, ""):
        return _received(int(descriptor))
    peer = load_or_create_peer_certificate(settings.STATE_DIR / "tls")
    own = None if settings.TLS_CERTIFICATE else load_or_create_authority(settings.STATE_DIR / "tls")
    found = ProxyInputs(_secret(), own, peer, HostCalls())
    if os.geteuid() == 0 and in_use():
        if settings.TLS_CERTIFICATE:
            # Before anything else: its files may be missing or not match.
            OperatorIdentity(
                Path(settings.TLS_CERTIFICATE), Path(settings.TLS_KEY), opened=found.opened
            )
        _reexecute(found)
    return found


def sockets_directory(port: int) -> Path:
    """The directory of the sockets between the processes behind the port. Raises OSError."""
    # Named by port, as another proxy may serve the same state directory.
    ours, others = sockets_directories(port)
    if not in_use():  # otherwise `proxy_inputs` has made it
        own_directory(own_directory(ours.parent) / ours.name)
        if os.geteuid() == 0:
            _take_sockets(others, ours, own_account())
    return ours


def sockets_directories(port: int) -> tuple[Path, Path]:
    """The directory of the sockets of a proxy that runs as this process would, and the one of a
    proxy that runs under the other account. They differ, because each account refuses directories
    of another one."""
    as_root = settings.PROXY_SOCKET_DIR / str(port)
    as_account = settings.PROXY_SOCKET_DIR / KINDS["proxy"].account / str(port)
    return (as_account, as_root) if in_use() else (as_root, as_account)


def _secret() -> bytes:
    return hashlib.sha256(b"proxy:" + settings.SECRET_KEY.encode()).digest()


def _reexecute(found: ProxyInputs) -> NoReturn:
    _make_sockets_directory()
    let_proxy_in()
    requests, host = fork_host_process(_become_host)
    content = {
        "secret": found.secret.hex(),
        "authority": found.authority
        and [found.authority.pem, private_pem(found.authority.key).decode()],
        "peer": [found.peer.certificate, found.peer.key],
        "requests": requests.fileno(),
        "host": host,
    }
    # Not marked close-on-exec.
    descriptor = os.memfd_create("given", 0)
    os.write(descriptor, json.dumps(content).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    requests.set_inheritable(True)
    environment = {**environment_of("proxy", os.environ), GIVEN: str(descriptor)}
    become("proxy")
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def _become_host() -> None:
    become("host")
    manage_files_as_root()
    _limit_pool(max(MIN_HOST_PROCESS_CONNECTIONS, settings.PROXY_PROCESSES))


def _limit_pool(connections: int) -> None:
    settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"] = connections


def _received(descriptor: int) -> ProxyInputs:
    with open(descriptor, "rb") as file:
        content = json.load(file)
    requests = socket.socket(fileno=content["requests"])
    requests.set_inheritable(False)
    _end_with(content["host"])
    _limit_pool(1)
    pair = [pem.encode() for pem in content["authority"] or []]
    authority = authority_of(*pair) if pair else None
    peer = PeerCertificate(*content["peer"])
    return ProxyInputs(bytes.fromhex(content["secret"]), authority, peer, HostCalls(requests))


def _end_with(host: int) -> None:
    """Let this process, the proxy's main one, exit if the host process does. Then the supervisor
    starts another proxy, and the clients of this one go on (`proxy.processes`)."""

    def look(*_: object) -> None:
        # The other processes of the proxy have no such child, and handlers of their own.
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(host, os.WNOHANG) != (0, 0):
                raise SystemExit(1)

    signal.signal(signal.SIGCHLD, look)


def _make_sockets_directory() -> None:
    """Make the directory for the sockets between the proxy's processes, for its account."""
    account = named_account(KINDS["proxy"].account)
    ours, others = sockets_directories(settings.PROXY_PORT)
    settings.PROXY_SOCKET_DIR.mkdir(mode=0o711, exist_ok=True)
    settings.PROXY_SOCKET_DIR.chmod(0o711)
    for directory in (ours.parent, ours):
        directory.mkdir(mode=0o700, exist_ok=True)
        set_owner(directory, account)
    _take_sockets(others, ours, account)


def _take_sockets(source: Path, target: Path, account: Account) -> None:
    """Move the sockets of a proxy that runs under another account to our directory, so that this
    proxy takes over its listeners and passes cancel requests on to it."""
    with contextlib.suppress(FileNotFoundError):
        for path in source.iterdir():
            if path.is_socket() and not path.is_symlink():
                set_owner(path, account)
                path.rename(target / path.name)
