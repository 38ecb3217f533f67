"""PgBouncer in transaction mode beside a compute, started when somebody first asks for it.

It is reached as the compute is, by a unix socket in the endpoint's directory, and goes when
the compute goes. Callers hold the branch's lock.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.compute import branch_data
from controlplane.compute.accounts import account_of, running_as
from controlplane.compute.logs import flush_log, open_log
from controlplane.compute.process import is_alive, reap, wait_until

PORT = 6432  # of the socket's name alone
MOST_CLIENTS = 10_000
SERVERS_PER_POOL = 20  # for each pair of database and role
START_TIMEOUT = 5.0  # seconds

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
# Since this version it follows a client's prepared statements from server to server.
KEEPS_PREPARED_STATEMENTS = (1, 21)


class PoolerUnavailable(Exception):
    """There is no pooler; the message says why."""


def pgbouncer() -> str | None:
    """PgBouncer's program, if the host has it."""
    if settings.PGBOUNCER is not None:
        return shutil.which(settings.PGBOUNCER)
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def pooler_socket(socket_dir: Path) -> Path:
    return socket_dir / f".s.PGSQL.{PORT}"


def ensure_pooler(branch_id: str, socket_dir: Path, *, roles: Collection[str]) -> None:
    """Have the pooler run beside the branch's compute, for these roles' clients.

    Raises PoolerUnavailable.
    """
    admit_roles(branch_id, roles)
    if _process(branch_id) is not None:
        return
    program = pgbouncer()
    if program is None:
        raise PoolerUnavailable("pooling is not available: PgBouncer is not installed on this host")
    config = _config_file(branch_id)
    log_file = config.with_suffix(".log")
    text = CONFIGURATION
    if _version(program) >= KEEPS_PREPARED_STATEMENTS:
        text += "max_prepared_statements = 200\n"
    branch_data.write_for(
        branch_id,
        config.name,
        text.format(
            socket_dir=socket_dir,
            port=PORT,
            pid_file=_pid_file(branch_id),
            auth_file=_auth_file(branch_id),
            most_clients=MOST_CLIENTS,
            servers=SERVERS_PER_POOL,
        ),
    )
    # What a pooler that was killed has left would pass for the new one's.
    pooler_socket(socket_dir).unlink(missing_ok=True)
    log_file.unlink(missing_ok=True)
    log = open_log(log_file)
    try:
        child = subprocess.Popen(
            [program, config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            **running_as(account_of(branch_data.branch_dir(branch_id))),
        )
    finally:
        os.close(log)
    deadline = time.monotonic() + START_TIMEOUT
    while not pooler_socket(socket_dir).exists():
        if child.poll() is not None or time.monotonic() > deadline:
            child.kill()
            raise PoolerUnavailable(f"PgBouncer did not start: {_last_line(log_file)}")
        time.sleep(0.002)
    reap(child)


@functools.cache
def _version(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def admit_roles(branch_id: str, roles: Collection[str]) -> None:
    """Have the branch's pooler, whether it runs yet or not, know these roles and no others."""
    quoted = ('"' + role.replace('"', '""') + '"' for role in sorted(roles))
    text = "".join(f'{role} ""\n' for role in quoted)
    path = _auth_file(branch_id)
    if path.exists() and path.read_text() == text:
        return
    branch_data.write_for(branch_id, path.name, text)
    if process := _process(branch_id):
        process.send_signal(signal.SIGHUP)


def stop_pooler(branch_id: str) -> None:
    """Stop the branch's pooler, if one runs, dropping its clients."""
    process = _process(branch_id)
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(psutil.Error):
            process.send_signal(number)
        if wait_until(lambda: not is_alive(process), time.monotonic() + 3):
            return


def _config_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer.ini"


def _auth_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "pgbouncer-users.txt"


def _pid_file(branch_id: str) -> Path:
    return branch_data.branch_dir(branch_id) / "run" / "pgbouncer.pid"


def _process(branch_id: str) -> psutil.Process | None:
    try:
        process = psutil.Process(int(_pid_file(branch_id).read_text()))
        # Process ids come round again: it is ours only if it was started with our file.
        ours = str(_config_file(branch_id)) in process.cmdline()
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process if ours and is_alive(process) else None


def _last_line(log_file: Path) -> str:
    flush_log(log_file)
    try:
        return log_file.read_text(errors="replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        return "it left no log"
