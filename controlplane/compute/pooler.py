"""PgBouncer in transaction mode beside a compute, started when somebody first asks for it.

It is reached as the compute is, by a unix socket in the endpoint's directory, and goes when
the compute goes. Callers hold the branch's lock.
"""

import functools
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.compute import branch_data
from controlplane.compute.accounts import account_of, launched_as
from controlplane.compute.door import connections_to
from controlplane.compute.foreign_files import read_regular, remove_from
from controlplane.compute.logs import flush_log, open_log
from controlplane.compute.occupants import (
    StopFailed,
    end_processes_in,
    have_ended,
    kill,
    lease,
    occupant,
)
from controlplane.compute.pooler_settings import (
    ALLOWED,
    KEEPS_PREPARED_STATEMENTS,
    MOST_CLIENTS,
    Version,
)
from controlplane.compute.process import reap

log = logging.getLogger(__name__)

NOT_STARTED = (
    "the endpoint's pooler did not start; connect without -pooler meanwhile, and if it stays so, "
    "tell this host's operator"
)
PORT = 6432  # of the socket's name alone
_SOCKET_NAME = f".s.PGSQL.{PORT}"
# Where nobody looks for it: see `shut`.
_SHUT_NAME = f"{_SOCKET_NAME}.shut"
SERVERS_PER_POOL = 20  # for each pair of database and role
START_TIMEOUT = 5.0  # seconds
STOP_TIMEOUT = 1.0  # seconds: it holds nothing but its clients' connections
# Since this version it takes SIGTERM for a wish to wait for its clients.
QUITS_BY_SIGQUIT: Version = (1, 23)

CONFIGURATION = """\
[databases]
* = host={socket_dir} port=5432

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {socket_dir}
unix_socket_mode = 0700
pidfile = {pid_file}
; The proxy has authenticated the client; here its name must only be a role's. The names are
; read from a file: a query for them would run in the client's database, as a superuser.
auth_type = trust
auth_file = {auth_file}
pool_mode = transaction
max_client_conn = {most_clients}
default_pool_size = {servers}
min_pool_size = 0
server_idle_timeout = 60
server_lifetime = 3600
server_login_retry = 0
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
"""


class PoolerUnavailable(Exception):
    """There is no pooler; the message says why."""


def pgbouncer() -> str | None:
    """PgBouncer's program, if the host has it."""
    if settings.PGBOUNCER is not None:
        return shutil.which(settings.PGBOUNCER)
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def pooler_socket(socket_dir: Path) -> Path:
    return socket_dir / _SOCKET_NAME


def ensure_pooler(branch_id: str, socket_dir: Path, *, roles: Collection[str]) -> Version:
    """Have the pooler run beside the branch's compute, for these roles' clients. Returns its
    version.

    Raises PoolerUnavailable.
    """
    admit_roles(branch_id, roles)
    program = pgbouncer()
    if _is_serving(branch_id, socket_dir):
        return pooler_version(program) if program else (0, 0)
    if program is None:
        raise PoolerUnavailable("pooling is not available: PgBouncer is not installed on this host")
    # One that hangs, or that was left half started, holds what the new one needs.
    try:
        end_processes_in(_config_file(branch_id))
    except StopFailed as error:
        raise PoolerUnavailable(str(error)) from error
    # What a pooler that was killed has left would pass for the new one's.
    remove_from(socket_dir, pooler_socket(socket_dir).name)
    remove_from(_pid_file(branch_id).parent, _pid_file(branch_id).name)
    branch_data.run_dir(branch_id)
    _configure(branch_id, socket_dir, program)
    with lease(branch_id) as inherited:
        _start(branch_id, socket_dir, program, inherited)
    return pooler_version(program)


def _configure(branch_id: str, socket_dir: Path, program: str) -> None:
    text = CONFIGURATION
    if pooler_version(program) >= KEEPS_PREPARED_STATEMENTS:
        text += "max_prepared_statements = 200\n"
    # The endpoint's own, of which the last lines count. A compute that an earlier release has
    # started has no such file.
    if not _settings_file(branch_id).exists():
        branch_data.write_for(branch_id, _settings_file(branch_id).name, "")
    text += "%include {settings_file}\n"
    branch_data.write_for(
        branch_id,
        _config_file(branch_id).name,
        text.format(
            socket_dir=socket_dir,
            port=PORT,
            pid_file=_pid_file(branch_id),
            auth_file=_auth_file(branch_id),
            settings_file=_settings_file(branch_id),
            most_clients=MOST_CLIENTS,
            servers=SERVERS_PER_POOL,
        ),
    )


def _start(branch_id: str, socket_dir: Path, program: str, inherited: int) -> None:
    """Returns once it listens and is known; raises PoolerUnavailable, and leaves nothing then."""
    log_file = _log_file(branch_id)
    log_file.unlink(missing_ok=True)
    words = open_log(log_file)
    try:
        child = subprocess.Popen(
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
            pass_fds=[inherited],
            **launched_as(
                account_of(branch_data.branch_dir(branch_id)), [program, _config_file(branch_id)]
            ),
        )
    finally:
        os.close(words)
    reap(child)
    deadline = time.monotonic() + START_TIMEOUT
    # It listens before it has written who it is; until then the next to ask would not know it
    # and would start another in its place.
    while not (_listens(pooler_socket(socket_dir)) and _process(branch_id)):
        if child.poll() is not None or time.monotonic() > deadline:
            child.kill()
            # What it says of the host's files is for the operator alone.
            fields = {"branch": branch_id, "error": _last_line(branch_id)}
            log.error("pooler did not start", extra=fields)
            raise PoolerUnavailable(NOT_STARTED)
        time.sleep(0.002)


@functools.cache
def pooler_version(program: str) -> Version:
    asked = [program, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=START_TIMEOUT).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def admit_roles(branch_id: str, roles: Collection[str]) -> None:
    """Have the branch's pooler, whether it runs yet or not, know these roles and no others."""
    quoted = ('"' + role.replace('"', '""') + '"' for role in sorted(roles))
    text = "".join(f'{role} ""\n' for role in quoted)
    path = _auth_file(branch_id)
    wanted = text.encode()
    if read_regular(path, len(wanted) + 1) == wanted and path.exists():
        return
    branch_data.write_for(branch_id, path.name, text)
    _reload(branch_id)


def set_pooler_settings(branch_id: str, settings: Mapping[str, str]) -> None:
    """Have the branch's pooler, whether it runs yet or not, have these settings beside the
    platform's: of `pooler_settings.ALLOWED`, but for what its version does not know."""
    program = pgbouncer()
    version = pooler_version(program) if program else None
    known = {
        name: value
        for name, value in settings.items()
        if version is None or version >= ALLOWED[name].since
    }
    text = "".join(f"{name} = {value}\n" for name, value in sorted(known.items()))
    path = _settings_file(branch_id)
    wanted = text.encode()
    if path.exists() and read_regular(path, len(wanted) + 1) == wanted:
        return
    branch_data.write_for(branch_id, path.name, text)
    _reload(branch_id)


def _reload(branch_id: str) -> None:
    if process := _process(branch_id):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGHUP)


def stop_pooler(branch_id: str) -> None:
    """Stop the branch's pooler, if one runs, dropping its clients."""
    process = _process(branch_id)
    if process is None:
        return
    program = pgbouncer()
    is_newer = program is not None and pooler_version(program) >= QUITS_BY_SIGQUIT
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGQUIT if is_newer else signal.SIGTERM)
    if not have_ended([process], within=STOP_TIMEOUT):
        kill([process])


def shut(socket_dir: Path) -> None:
    """Let no new client in to the pooler that listens there. Whoever has come before is among
    `poolers_clients`; whoever comes later finds nobody, and has sent nothing yet."""
    # The directory is a stranger's: what is there instead of a socket keeps nobody from stopping.
    with suppress(OSError):
        pooler_socket(socket_dir).rename(socket_dir / _SHUT_NAME)


def open_again(socket_dir: Path) -> None:
    """Take back `shut`."""
    with suppress(OSError):
        (socket_dir / _SHUT_NAME).rename(pooler_socket(socket_dir))


def wait_until_left(socket_dir: Path, *, still: float) -> bool:
    """Give the pooler's clients, who were told that it will stop, time to let go of it, until none
    has for `still` seconds; returns whether all have."""
    fewest = poolers_clients()[socket_dir]
    deadline = time.monotonic() + still
    while count := poolers_clients()[socket_dir]:
        if count < fewest:
            fewest, deadline = count, time.monotonic() + still
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def stop_unused(branch_id: str, socket_dir: Path) -> None:
    """Stop the branch's pooler, which listens there, unless it has a client."""
    shut(socket_dir)
    if poolers_clients()[socket_dir]:
        open_again(socket_dir)
        return
    stop_pooler(branch_id)
    remove_from(socket_dir, _SHUT_NAME)


def has_pooler(socket_dir: Path) -> bool:
    """Whether there is a pooler's socket."""
    return os.path.lexists(pooler_socket(socket_dir))


def poolers_clients() -> Counter[Path]:
    """How many connections each pooler of this host has, by the directory of its socket."""
    return Counter(connections_to(_SOCKET_NAME))


def _config_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer.ini"


def _auth_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer-users.txt"


def _settings_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer-settings.ini"


def _pid_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "run" / "pgbouncer.pid"


def _log_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer.log"


def _is_serving(branch_id: str, socket_dir: Path) -> bool:
    process = _process(branch_id)
    if process is None or not pooler_socket(socket_dir).exists():
        return False
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_STOPPED)
    return False


def _listens(path: Path) -> bool:
    """Whether connections are taken there; between the socket and this lies a moment."""
    with socket.socket(socket.AF_UNIX) as client:
        # Whoever listens there may take none, and to wait for that would be to wait for ever.
        client.setblocking(False)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _process(branch_id: str) -> psutil.Process | None:
    found = re.fullmatch(rb"([0-9]{1,10})\s*", read_regular(_pid_file(branch_id), 64))
    # Process ids come round again: it is ours only if it was started with our file.
    return occupant(int(found[1]), _config_file(branch_id)) if found else None


def _last_line(branch_id: str) -> str:
    flush_log(_log_file(branch_id))
    lines = read_regular(_log_file(branch_id), 4096, from_end=True).splitlines()
    return lines[-1].decode(errors="replace") if lines else "it left no log"
