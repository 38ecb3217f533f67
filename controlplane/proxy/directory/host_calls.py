"""What the proxy cannot do on this host without rights that it has given up: find computes, start
poolers beside them, record their end, read their catalogs, let their commits go on without a second
host that is lost, and open files of root's.

If the proxy has an account of its own, a process beside it, the **host process**, does this for it,
under the worker's account. It is forked before the proxy gives up its rights. All of the proxy's
processes share a socket to it. For each call they send the request and one end of a new socket, on
which the host process answers. It ends when all of them have ended.

Whoever takes over a process of the proxy can call these functions and no others, for names that a
branch, an endpoint or a receiver of the log can have where the function takes one (ARGUMENTS).
"""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Any, NoReturn

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.compute import compute
from controlplane.compute.host import patience
from controlplane.compute.host.filesystem import LockTimeout, lock_branches, pooler_lock
from controlplane.compute.pooler import NOT_STARTED, PoolerUnavailable, ensure_pooler
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.pooler_settings import Version
from controlplane.database.base import release_connection
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.features import features
from controlplane.models import Role
from controlplane.operations.catalog.importing import holding_catalog, import_catalog
from controlplane.process_accounts import serve_until_replaced
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.services import waking

log = logging.getLogger(__name__)

# Seconds that a caller waits, if it does not give up before.
_ANSWER_TIMEOUT = 60.0
_POOLER_LOCK_TIMEOUT = 10.0
# Calls of these names wait for no lock, compute or database, and for no call that does.
_QUICK = {"running_endpoint", "open_run", "open_log", "open_certificate", "open_key"}
_QUICK_THREADS, _THREADS = 8, 128
# How many calls of one name may be under way: of an account, whose computes may hang, or, without
# one, in all.
_MAX_OF_ACCOUNT, _MAX_WITHOUT_ACCOUNT = 4, 32
_MAX_MESSAGE_BYTES = 4096  # bytes
_MAX_ERROR_LENGTH = 500  # characters
_NAMES = {kind: re.compile(kind + "(-[a-z0-9]{1,40}){1,6}") for kind in ("br", "ep", "lr")}
# A host may have any name. It is only looked for in the database.
_NAMES["host"] = re.compile(".{1,60}")
# What the arguments of each call are; a call that is not here has none.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "running_endpoint": ("br",),
    "start_pooler": ("ep", "br"),
    "notice_death": ("ep",),
    "import_catalog": ("ep",),
    "open_run": ("br", "ep"),
    "take_out_ended": ("lr",),
    "open_log_source": ("lr", "host"),
}


class ComputeStopped(Exception):
    """The compute was stopped before its pooler was started."""


def _start_pooler(endpoint_id: str, branch_id: str) -> Version:
    lock = lock_branches(pooler_lock(branch_id), timeout=_POOLER_LOCK_TIMEOUT)
    try:
        # The roles are read under the locks, so that an older list never replaces a newer one.
        with lock, holding_catalog(branch_id):
            if not compute.accepts_clients(branch_id, endpoint_id):
                raise ComputeStopped
            directory, roles = socket_dir(endpoint_id), Role.login_names(branch_id)
            return ensure_pooler(branch_id, directory, roles=roles)
    except (OSError, subprocess.SubprocessError) as error:
        # Such as a full disk. The words may name files of the host.
        log.error("pooler did not start", extra={"branch": branch_id, "error": str(error)})
        raise PoolerUnavailable(NOT_STARTED) from error


def _open_log() -> int:
    """The log, which the supervisor of `up` does not write any more. This process writes to it
    too."""
    descriptor = os.open(
        settings.STATE_DIR / "log" / "proxy.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    return descriptor


CALLS: Mapping[str, Callable[..., Any]] = {
    "running_endpoint": compute.running_endpoint,
    "start_pooler": _start_pooler,
    "notice_death": waking.notice_death,
    "import_catalog": import_catalog,
    "check_secret_key": refuse_other_key,
    "open_run": compute.open_run,
    "open_log": _open_log,
    "open_certificate": lambda: os.open(settings.TLS_CERTIFICATE, os.O_RDONLY | os.O_CLOEXEC),
    "open_key": lambda: os.open(settings.TLS_KEY, os.O_RDONLY | os.O_CLOEXEC),
}


@cache
def calls() -> Mapping[str, Callable[..., Any]]:
    """CALLS, and those of the features. A call whose name begins with `open_` returns a descriptor,
    which the caller closes."""
    of_features = {name: do for one in features() for name, do in one.host_calls.items()}
    return {**CALLS, **of_features}


_ERRORS = {
    one.__name__: one
    for one in (
        *(ComputeStopped, PoolerUnavailable, LockTimeout),
        *(ControlPlaneUnavailable, OtherSecretKey, OSError),
    )
}
_UNAVAILABLE = ControlPlaneUnavailable.__name__


class HostCalls:
    """Calls the functions of `calls`: in this process or, given the socket to it, in the host
    process."""

    def __init__(self, requests: socket.socket | None = None) -> None:
        self._requests = requests

    @property
    def is_here(self) -> bool:
        """True if this process has the rights itself."""
        return self._requests is None

    def call(self, name: str, *arguments: str, account_id: str = "") -> Any:
        """Returns what the function returns. Calls that may wait for something of an account name
        it, as the host process makes few of them at once. Raises what it raises, of _ERRORS; and
        ControlPlaneUnavailable, also if the host process fails."""
        if self._requests is None:
            return calls()[name](*arguments)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            try:
                with theirs:
                    request = f"{name} {account_id}\n{json.dumps([name, *arguments])}".encode()
                    socket.send_fds(self._requests, [request], [theirs.fileno()])
                ours.settimeout(_ANSWER_TIMEOUT)
                answer, descriptors, _, _ = socket.recv_fds(
                    ours, _MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                log.error("host process does not answer", extra={"error": str(error)})
                raise ControlPlaneUnavailable from error
        if not answer:
            raise ControlPlaneUnavailable
        found = json.loads(answer)
        if "error" in found:
            raise _ERRORS[found["error"]](*found["words"])
        return descriptors[0] if descriptors else found["value"]


class CallThreads:
    """The host process's threads. Runs calls so that those of one account leave threads to the
    others. An account's further calls wait without a thread. The callers bound their number."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="quick")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="host")
        # Protects what follows: by name and account, how many calls are under way, and the others.
        self._lock = threading.Lock()
        self._under_way: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._waiting: defaultdict[tuple[str, str], deque[Callable[[], None]]] = defaultdict(deque)

    def run(self, name: str, account_id: str, call: Callable[[], None]) -> None:
        """Calls `call` in a thread, at once or later. It must raise nothing."""
        if name in _QUICK:
            self._quick.submit(call)
            return
        share = name, account_id
        with self._lock:
            self._waiting[share].append(call)
            self._start_next(share)

    def _start_next(self, share: tuple[str, str]) -> None:
        """The caller holds the lock."""
        most = _MAX_OF_ACCOUNT if share[1] else _MAX_WITHOUT_ACCOUNT
        if not self._waiting[share]:
            del self._waiting[share]
        elif self._under_way[share] < most:
            self._under_way[share] += 1
            self._threads.submit(self._run, share, self._waiting[share].popleft())

    def _run(self, share: tuple[str, str], call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            with self._lock:
                self._under_way[share] -= 1
                if not self._under_way[share]:
                    del self._under_way[share]
                self._start_next(share)


def fork_host_process(
    become: Callable[[], object],
) -> tuple[socket.socket, int]:
    """Fork the host process, which first calls `become` to give up what it does not need. Returns
    the socket for HostCalls, and its process id.

    A process of its own restarts the one that answers. Must be called without threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _end_after(lambda: _keep_answering(theirs, become))
    theirs.close()
    return ours, pid


def _keep_answering(requests: socket.socket, become: Callable[[], object]) -> None:
    # It ends once nobody can call it, and not before.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve_until_replaced()
    become()
    while True:
        pid = os.fork()
        if pid == 0:
            _end_after(lambda: _answer_all(requests))
        _, status = os.waitpid(pid, 0)
        if status == 0:
            return
        log.error("host process died", extra={"pid": pid, "status": status})


def _answer_all(requests: socket.socket) -> None:
    """Answer calls until no process is left that could make one."""
    # A call that waits for a compute or a lock keeps no database connection from the others.
    patience.before_waits = release_connection
    threads = CallThreads()
    while True:
        request, descriptors, _, _ = socket.recv_fds(
            requests, _MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        if not request:
            return
        share, _, call = request.decode(errors="replace").partition("\n")
        name, _, account_id = share.partition(" ")
        for descriptor in descriptors:
            caller = socket.socket(fileno=descriptor)
            threads.run(name, account_id, partial(_answer, call, caller))


def _answer(request: str, caller: socket.socket) -> None:
    with caller:
        value: Any = None
        descriptors: list[int] = []
        try:
            name, *arguments = json.loads(request)
            kinds = zip(ARGUMENTS.get(name, ()), arguments, strict=True)
            if name not in calls() or not all(_NAMES[kind].fullmatch(one) for kind, one in kinds):
                raise ValueError("not a call")
            value = calls()[name](*arguments)
            answer = {"value": value}
            if name.startswith("open_") and value is not None:
                descriptors = [value]
        except (OperationalError, InterfaceError):
            answer = {"error": _UNAVAILABLE, "words": []}
        except Exception as error:
            known = next((n for n, one in _ERRORS.items() if isinstance(error, one)), _UNAVAILABLE)
            words = [] if known == _UNAVAILABLE else [str(error)[:_MAX_ERROR_LENGTH]]
            answer = {"error": known, "words": words}
            if not words:
                fields = {"call": request, "error": repr(error)}
                log.warning("call of the proxy failed", extra=fields)
        finally:
            close_old_connections()
        # The caller may have given up.
        with suppress(OSError):
            socket.send_fds(caller, [json.dumps(answer).encode()], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _end_after(run: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        log.exception("host process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
