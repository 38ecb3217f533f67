"""Runs the Procfile's processes under supervisor, for `manage.py up`."""

import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import psutil
from supervisor.xmlrpc import SupervisorTransport

from controlplane.compute.host.accounts import SERVICE_ACCOUNT
from controlplane.compute.host.foreign_files import process_file
from controlplane.process_accounts import KINDS, SERVES_UNTIL_REPLACED

# Marks every process of ours, so that the next `up` finds what a killed `up` left running. Computes
# are not marked: they may keep running.
MARK = "PERCH_UP"
# More than the kernel lets a program be started with.
MAX_ENVIRONMENT_BYTES = 6 << 20
# All programs are in one group: supervisor stops groups in turn, with a second between them.
GROUP = "perch"


@dataclass(frozen=True)
class Program:
    """A process to keep running. `command` is a shell command."""

    name: str
    command: str
    # The account it runs under; None for ours.
    user: str | None = None
    stop_signal: str = "TERM"
    autostart: bool = False


def programs_of(procfile: Path, *, launcher: str = "") -> list[Program]:
    """The processes of a Procfile, without `release`, which is none. Their commands begin with the
    `launcher`, in which "%s" stands for the process's name."""
    found = re.findall(r"^(\w+):\s*(.+)$", procfile.read_text(), re.MULTILINE)
    return [
        Program(name, launcher.replace("%s", name) + command)
        for name, command in found
        if name != "release"
    ]


class Supervisor:
    """The supervisor process, its configuration and its socket."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        state_dir: Path,
        socket: Path,
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        self.state_dir = state_dir
        self.socket = socket
        self.environment = {**environment, MARK: str(state_dir)}
        self.directory = directory
        self.log_dir = state_dir / "log"
        self._complaints = self.log_dir / "supervisord-errors.log"
        self.config = state_dir / "supervisord.conf"
        self.programs = programs
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start supervisor, which starts the programs that have `autostart`."""
        self.log_dir.mkdir(mode=0o700, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self.config.write_text(self._configuration())
        with self._complaints.open("wb") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", self.config],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                # Only `up` should get Ctrl-C; it stops the rest in order.
                start_new_session=True,
            )

    def is_listening(self) -> bool:
        """True if supervisor accepts calls; it starts its programs only then."""
        try:
            return bool(self._rpc().getState())
        except (OSError, HTTPException, Fault):
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def processes(self) -> dict[str, int]:
        """The process id of each program, 0 if it does not run; {} if supervisor does not
        answer."""
        try:
            return {one["name"]: int(one["pid"]) for one in self._rpc().getAllProcessInfo()}
        except (OSError, HTTPException, Fault):
            return {}

    def last_error(self) -> str:
        """Supervisor's own last error message; "" if there is none."""
        with suppress(OSError):
            lines = self._complaints.read_text(errors="replace").splitlines()
            words = (line.strip() for line in reversed(lines) if "For help, use" not in line)
            return next(filter(None, words), "")
        return ""

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start_program(self, name: str) -> None:
        """Start the program if it does not run already."""
        try:
            self._rpc().startProcess(f"{GROUP}:{name}", False)
        except Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise

    def stop_program(self, name: str) -> None:
        """Stop the program and wait for its end; does nothing if it does not run."""
        try:
            self._rpc().stopProcess(f"{GROUP}:{name}", True)
        except Fault as fault:
            if "NOT_RUNNING" not in fault.faultString:
                raise

    def stop(self, *, timeout: float = 60.0) -> None:
        """Stop all programs and supervisor itself; it is killed after `timeout` seconds."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _rpc(self) -> Any:
        transport = SupervisorTransport(serverurl=f"unix://{self.socket}")
        return ServerProxy("http://localhost", transport=transport).supervisor

    def _configuration(self) -> str:
        sections = [
            f"""
[supervisord]
nodaemon = true
logfile = {_literal(self.log_dir)}/supervisord.log
pidfile = {_literal(self.state_dir)}/supervisord.pid
childlogdir = {_literal(self.log_dir)}
minfds = 1024

[unix_http_server]
file = {_literal(self.socket)}
chmod = 0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
        ]
        names = ",".join(program.name for program in self.programs)
        group = f"\n[group:{GROUP}]\nprograms = {names}\n"
        return "".join([*sections, group, *map(self._section, self.programs)])

    def _section(self, program: Program) -> str:
        # Supervisor expands the log file's name twice, and everything else once.
        # It restarts without limit: the pause between tries grows by a second each time. It waits
        # longer for a program's end than gunicorn waits for requests in flight (30 s).
        return f"""
[program:{program.name}]
command = /bin/sh -c {_quoted("exec " + program.command)}
autostart = {program.autostart}
autorestart = true
startsecs = 5
startretries = 1000000
stopsignal = {program.stop_signal}
stopwaitsecs = 40
redirect_stderr = true
stdout_logfile = {_literal(_literal(self.log_dir))}/{program.name}.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 2
{f"user = {program.user}" if program.user else ""}
"""


def end_leftovers(state_dir: Path) -> list[int]:
    """End what an earlier `up` on this directory has left running; returns the process ids.

    Supervisor ends first, as it would restart the others. The database ends last, as the others
    need it to end in order. Of the proxy only the main process ends: the others serve clients until
    the next proxy takes over.
    """
    found = _marked(state_dir)
    supervisors = [process for process in found if b"supervisord" in _command_of(process)]
    postgres = [process for process in found if _is_postgres(process)]
    proxies = [process for process in found if _is_proxy(process)]
    replaced = os.fsencode(SERVES_UNTIL_REPLACED)
    kept = [one for one in proxies if process_file(one.pid, "comm").strip() == replaced]
    others = [process for process in found if process not in [*supervisors, *postgres, *kept]]
    for group, number in (
        (supervisors, signal.SIGKILL),
        (others, signal.SIGTERM),
        (postgres, signal.SIGINT),
    ):
        _end(group, number)
    return [process.pid for process in found if process not in kept]


def end_proxies(state_dir: Path) -> None:
    """End every process of this directory's proxies, also of those that were replaced and still
    serve clients."""
    _end([one for one in _marked(state_dir) if _is_proxy(one)], signal.SIGINT)


def _end(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send the signal to the processes, and kill those that are still there after 20 s."""
    for process in processes:
        _send(process, number)
    _, stubborn = psutil.wait_procs(processes, timeout=20)
    for process in stubborn:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=5)


def _marked(state_dir: Path) -> list[psutil.Process]:
    """The processes with the mark, of Perch's own accounts: any other process could have it too."""
    mark = b"\0%b=%b\0" % (MARK.encode(), os.fsencode(state_dir))
    own = {os.geteuid()}
    if os.geteuid() == 0:
        for name in {SERVICE_ACCOUNT, *(kind.account for kind in KINDS.values())}:
            with suppress(KeyError):
                own.add(pwd.getpwnam(name).pw_uid)
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # Not the owner of its files in /proc: a process can make that root.
            if process.pid != os.getpid() and own.issuperset(process.uids()):
                environment = process_file(process.pid, "environ", MAX_ENVIRONMENT_BYTES)
                if mark in b"\0%b\0" % environment:
                    found.append(process)
    return found


def _is_proxy(process: psutil.Process) -> bool:
    return _command_of(process).endswith(b"\0proxy\0")


def _is_postgres(process: psutil.Process) -> bool:
    return re.match(rb"([^\0]*/)?postgres", _command_of(process)) is not None


def _command_of(process: psutil.Process) -> bytes:
    return process_file(process.pid, "cmdline")


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _literal(value: Path | str) -> str:
    """Escape percent signs, which supervisor's configuration would expand."""
    return str(value).replace("%", "%%")


def _quoted(command: str) -> str:
    escaped = _literal(command).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
