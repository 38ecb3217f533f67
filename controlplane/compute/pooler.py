"""PgBouncer in transaction mode beside a compute, started when a client first needs it.

Like the compute, it listens on a Unix socket in the endpoint's directory. It stops when the compute
stops. Callers hold the branch's lock, or for a start `pooler_lock`.
"""

import functools
import logging
import os
import re
import secrets
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

from controlplane.compute.data import branch_data
from controlplane.compute.host import patience
from controlplane.compute.host.accounts import account_of, launch
from controlplane.compute.host.foreign_files import read_regular, remove_from
from controlplane.compute.host.listener_socket import connections_to, sockets_mode
from controlplane.compute.host.logs import flush_log, open_log
from controlplane.compute.host.reaping import reap
from controlplane.compute.processes.occupants import (
    StopFailed,
    end_processes_in,
    have_ended,
    kill,
    lease,
    occupant,
)
from controlplane.compute.settings.pooler_settings import (
    ALLOWED,
    KEEPS_PREPARED_STATEMENTS,
    MAX_CLIENTS,
    Version,
)

log = logging.getLogger(__name__)

NOT_STARTED = (
    "the endpoint's pooler did not start; connect without -pooler meanwhile, and if this "
    "persists, tell this host's operator"
)
PORT = 6432  # only part of the socket's name
_SOCKET_NAME = f".s.PGSQL.{PORT}"
# The socket's name while it is hidden: see `hide_socket`.
_HIDDEN_NAME = f"{_SOCKET_NAME}.shut"
SOCKETS = (_SOCKET_NAME, _HIDDEN_NAME)
# The files in the branch's directory.
CONFIG, SETTINGS, LOG = "pgbouncer.ini", "pgbouncer-settings.ini", "pgbouncer.log"
USERS, DATABASES, PID = "pgbouncer-users.txt", "pgbouncer-databases.ini", "run/pgbouncer.pid"
SERVERS_PER_POOL = 20  # for each pair of database and role
START_TIMEOUT = 5.0  # seconds
STOP_TIMEOUT = 1.0  # seconds: it has nothing to save, only clients to drop
MAX_LEAVE_TIME = 10.0  # seconds in all: whoever leaves may be the compute itself
# Since this version, SIGTERM makes PgBouncer wait for its clients; SIGQUIT stops it at once.
QUITS_BY_SIGQUIT: Version = (1, 23)

# Run in a server connection after each transaction, so that the next client finds nothing of the
# client before. It spares the prepared statements that PgBouncer keeps, and Postgres's plans.
RESET = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; "
    "SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"
)
CONFIGURATION = """\
[databases]
%include {databases_file}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {socket_dir}
unix_socket_mode = {socket_mode}
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
server_reset_query = {reset}
server_reset_query_always = 1
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
"""


class PoolerUnavailable(Exception):
    """There is no pooler; the message says why."""


def pgbouncer() -> str | None:
    """The path of PgBouncer's program; None if the host does not have it."""
    if settings.PGBOUNCER is not None:
        return shutil.which(settings.PGBOUNCER)
    if built := shutil.which(built_pgbouncer()):
        return built
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def built_pgbouncer() -> Path:
    """Where `manage.py install_pgbouncer` puts the program that it builds."""
    return Path(settings.STATE_DIR) / "pgbouncer" / "pgbouncer"


def pooler_socket(socket_dir: Path) -> Path:
    return socket_dir / _SOCKET_NAME


def ensure_pooler(branch_id: str, socket_dir: Path, *, roles: Collection[str]) -> Version:
    """Make the pooler run beside the branch's compute, for clients with these roles. Returns the
    pooler's version.

    Raises PoolerUnavailable.
    """
    admit_roles(branch_id, roles)
    program = pgbouncer()
    if _is_serving(branch_id, socket_dir):
        return pooler_version(program) if program else (0, 0)
    if program is None:
        raise PoolerUnavailable("pooling is not available: PgBouncer is not installed on this host")
    patience.before_waits()
    # A pooler that hangs or was left half started holds what the new one needs.
    try:
        end_processes_in(_file(branch_id, CONFIG))
        # Files left by a killed pooler would be mistaken for the new one's.
        remove_from(socket_dir, *SOCKETS)
        remove_from(_file(branch_id, PID).parent, "pgbouncer.pid")
        place = branch_data.branch_dir(branch_id)
        branch_data.make_run_dir(place, account_of(place))
        _configure(branch_id, socket_dir, program)
        with lease(branch_id) as inherited:
            _start(branch_id, socket_dir, program, inherited)
    except StopFailed as error:
        raise PoolerUnavailable(str(error)) from error
    return pooler_version(program)


def _configure(branch_id: str, socket_dir: Path, program: str) -> None:
    text, reset = CONFIGURATION, RESET
    if pooler_version(program) >= KEEPS_PREPARED_STATEMENTS:
        text += "max_prepared_statements = 200\n"
    else:
        reset += "; DEALLOCATE ALL"
    _write_databases(branch_id, socket_dir)
    # The endpoint's own settings come last, since later lines win. A compute that an earlier
    # release started has no such file.
    if not _file(branch_id, SETTINGS).exists():
        branch_data.write_branch_file(branch_id, SETTINGS, "")
    text += "%include {settings_file}\n"
    branch_data.write_branch_file(
        branch_id,
        CONFIG,
        text.format(
            socket_dir=socket_dir,
            databases_file=_file(branch_id, DATABASES),
            reset=reset,
            socket_mode=sockets_mode(),
            port=PORT,
            pid_file=_file(branch_id, PID),
            auth_file=_file(branch_id, USERS),
            settings_file=_file(branch_id, SETTINGS),
            most_clients=MAX_CLIENTS,
            servers=SERVERS_PER_POOL,
        ),
    )


def _start(branch_id: str, socket_dir: Path, program: str, inherited: int) -> None:
    """Start the pooler and wait until it listens and its process can be found. If it does not,
    end it and raise PoolerUnavailable."""
    log_file = _file(branch_id, LOG)
    log_file.unlink(missing_ok=True)
    words = open_log(log_file)
    try:
        account = account_of(branch_data.branch_dir(branch_id))
        command: list[Path | str] = [program, _file(branch_id, CONFIG)]
        child = launch(
            account, command, stdout=subprocess.DEVNULL, stderr=words, pass_fds=[inherited]
        )
    finally:
        os.close(words)
    reap(child)
    deadline = time.monotonic() + START_TIMEOUT
    # PgBouncer listens before it has written its pid file. Until then, the next caller would not
    # find this process, and would start another one in its place.
    while not (_listens(pooler_socket(socket_dir)) and _process(branch_id)):
        if child.poll() is not None or time.monotonic() > deadline:
            child.kill()
            # Its words may name files of the host, which only the operator may see.
            fields = {"branch": branch_id, "error": _last_line(branch_id)}
            log.error("pooler did not start", extra=fields)
            raise PoolerUnavailable(NOT_STARTED)
        time.sleep(0.002)


@functools.cache
def pooler_version(program: str) -> Version:
    command = [program, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT).stdout
    found = re.search(r"(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def admit_roles(branch_id: str, roles: Collection[str]) -> None:
    """Make the branch's pooler, running or not, accept these roles and no others."""
    quoted = ('"' + role.replace('"', '""') + '"' for role in sorted(roles))
    _change(branch_id, USERS, "".join(f'{role} ""\n' for role in quoted))


def set_pooler_settings(branch_id: str, settings: Mapping[str, str]) -> None:
    """Give the branch's pooler, running or not, these settings on top of the platform's. Names are
    of `pooler_settings.ALLOWED`; those that its version does not know are left out."""
    program = pgbouncer()
    version = pooler_version(program) if program else None
    known = {
        name: value
        for name, value in settings.items()
        if version is None or version >= ALLOWED[name].since
    }
    text = "".join(f"{name} = {value}\n" for name, value in sorted(known.items()))
    _change(branch_id, SETTINGS, text)


def renew_servers(branch_id: str, socket_dir: Path) -> None:
    """Make the branch's pooler, if it runs, replace its server connections, because the defaults of
    new sessions may have changed. No client is disconnected."""
    if _process(branch_id):
        _write_databases(branch_id, socket_dir)
        _reload(branch_id)


def _write_databases(branch_id: str, socket_dir: Path) -> None:
    # PgBouncer replaces its server connections, and forgets the defaults that it has read from
    # them, when this line has changed. The comment changes it.
    line = f"* = host={socket_dir} port=5432 connect_query='/* {secrets.token_hex(8)} */'\n"
    branch_data.write_branch_file(branch_id, DATABASES, line)


def _change(branch_id: str, name: str, text: str) -> None:
    """Give a file of the pooler's this text; if that is new, let a running pooler read it."""
    path, wanted = _file(branch_id, name), text.encode()
    if path.exists() and read_regular(path, len(wanted) + 1) == wanted:
        return
    branch_data.write_branch_file(branch_id, name, text)
    _reload(branch_id)


def _reload(branch_id: str) -> None:
    if process := _process(branch_id):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGHUP)


def stop_pooler(branch_id: str) -> None:
    """Stop the branch's pooler if it runs, dropping its clients."""
    process = _process(branch_id)
    if process is None:
        return
    program = pgbouncer()
    is_newer = program is not None and pooler_version(program) >= QUITS_BY_SIGQUIT
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGQUIT if is_newer else signal.SIGTERM)
    if not have_ended([process], timeout=STOP_TIMEOUT):
        kill([process])


def hide_socket(socket_dir: Path) -> None:
    """Refuse new clients of the pooler. Connections made before are counted by `client_counts`; a
    later one fails before its client has sent anything."""
    # The directory is untrusted: whatever is in the socket's place must not prevent a stop.
    with suppress(OSError):
        pooler_socket(socket_dir).rename(socket_dir / _HIDDEN_NAME)


def is_hidden(branch_id: str, socket_dir: Path) -> bool:
    """Whether the socket of the branch's pooler, which runs, is hidden."""
    return os.path.lexists(socket_dir / _HIDDEN_NAME) and _process(branch_id) is not None


def restore_socket(socket_dir: Path) -> None:
    """Undo `hide_socket`."""
    with suppress(OSError):
        (socket_dir / _HIDDEN_NAME).rename(pooler_socket(socket_dir))


def wait_until_left(socket_dir: Path, *, stall_timeout: float) -> bool:
    """Wait until the pooler's clients, which were told that it will stop, have disconnected. True
    if all have; False once none has left for `stall_timeout` seconds, or after MAX_LEAVE_TIME."""
    began = asked = time.monotonic()
    fewest, deadline = MAX_CLIENTS + 1, began + stall_timeout
    while count := client_counts()[socket_dir]:
        now = time.monotonic()
        if count < fewest:
            fewest, deadline = count, min(now + stall_timeout, began + MAX_LEAVE_TIME)
        if now > deadline:
            return False
        # Counting takes long if processes of this host hold many sockets.
        time.sleep(max(0.005, min(3 * (now - asked), deadline - now)))
        asked = time.monotonic()
    return True


def stop_unused(branch_id: str, socket_dir: Path) -> None:
    """Stop the branch's pooler, which listens there, if it has no client."""
    hide_socket(socket_dir)
    if client_counts()[socket_dir]:
        restore_socket(socket_dir)
        return
    stop_pooler(branch_id)
    remove_from(socket_dir, _HIDDEN_NAME)


def has_pooler(socket_dir: Path) -> bool:
    """True if a pooler's socket is there."""
    return os.path.lexists(pooler_socket(socket_dir))


def client_counts() -> Counter[Path]:
    """How many connections each pooler of this host has, by its socket directory."""
    return Counter(connections_to(_SOCKET_NAME))


def _file(branch_id: str, name: str) -> Path:
    return branch_data.branch_dir(branch_id) / name


def _is_serving(branch_id: str, socket_dir: Path) -> bool:
    process = _process(branch_id)
    if process is None or not pooler_socket(socket_dir).exists():
        return False
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_STOPPED)
    return False


def _listens(path: Path) -> bool:
    """True if the socket accepts connections. PgBouncer makes it a moment before it listens."""
    with socket.socket(socket.AF_UNIX) as client:
        # A blocking connect would never end if the listener accepts nothing.
        client.setblocking(False)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _process(branch_id: str) -> psutil.Process | None:
    found = re.fullmatch(rb"([0-9]{1,10})\s*", read_regular(_file(branch_id, PID), 64))
    # Process ids are reused: it is the pooler only if it was started with our file.
    return occupant(int(found[1]), _file(branch_id, CONFIG)) if found else None


def _last_line(branch_id: str) -> str:
    flush_log(_file(branch_id, LOG))
    lines = read_regular(_file(branch_id, LOG), 4096, from_end=True).splitlines()
    return lines[-1].decode(errors="replace") if lines else "it left no log"
