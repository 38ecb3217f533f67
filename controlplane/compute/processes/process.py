"""One Postgres process on one data directory: start it, find it, stop it.

All state is read from the data directory's postmaster.pid and from the process itself, so any
worker finds a Postgres that another worker started.
"""

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.compute.host.accounts import account_of, launch, start_as
from controlplane.compute.host.binaries import bin_for
from controlplane.compute.host.foreign_files import read_regular, remove_from
from controlplane.compute.host.listener_socket import HIDDEN_SOCKET, SOCKET
from controlplane.compute.host.logs import flush_log, open_log
from controlplane.compute.host.patience import check_cancelled, readable, remaining
from controlplane.compute.host.progress import (
    Movement,
    Watch,
    continue_if_stopped,
    wait_while_progressing,
)
from controlplane.compute.host.reaping import reap
from controlplane.compute.host.steps import Step, reached, step
from controlplane.compute.processes.occupants import StopFailed as StopFailed
from controlplane.compute.processes.occupants import end_processes_in, is_alive, occupant
from controlplane.compute.processes.recovery import bytes_to_redo, is_to_recover, waits_for_log

log = logging.getLogger(__name__)

# Seconds that a start may make no progress without being ready.
START_TIMEOUT = 15.0
# The signals of a stop: a fast shutdown and then an immediate one, and for how many seconds each
# may make no progress.
STOP_TIMEOUTS = ((signal.SIGINT, 3.0), (signal.SIGQUIT, 2.0))
# Seconds that a whole stop may take, whatever progress the compute shows. The last checkpoint of
# the largest shared buffers, 90 GB, fits at 100 MB/s.
MAX_STOP_TIME = 900.0
CHECK_TIMEOUT = 30.0  # seconds for Postgres to check a configuration
CANCEL_CHECK_INTERVAL = 0.25  # seconds
RECOVERY_LOG_INTERVAL = 5.0  # seconds
MAX_PID_FILE_BYTES = 4096  # bytes
MAX_CHECK_BYTES = 1 << 16  # bytes
MAX_ERROR_LENGTH = 400  # characters
# A line of a log. Postgres begins the further lines of a message, which may be a client's, by tabs.
COMPLAINT = re.compile(
    r"^(?:\S+ \S+ \S+ \[\d+\] )?(LOG|FATAL|PANIC|ERROR|DETAIL|HINT):  (.*)", re.MULTILINE
)


class StartFailed(Exception):
    """Postgres did not start; the message is its own last words."""


def socket_dir_of(data_dir: Path) -> Path | None:
    """The directory in which the Postgres that runs on `data_dir` listens. None if none runs, or if
    its directory is not one below SOCKET_DIR that belongs to its own account."""
    if not running_postmaster(data_dir):
        return None
    lines = _pid_file(data_dir)
    found = Path(lines[4]) if len(lines) > 4 else Path()
    # The account can write this file. It could name the sockets of another compute, which would
    # then be shut and removed in place of its own.
    if found.parent != Path(settings.SOCKET_DIR):
        return None
    with suppress(OSError):
        if found.lstat().st_uid == account_of(data_dir.parent).uid:
            return found
    return None


def open_postmaster(data_dir: Path) -> int | None:
    """A pidfd of the Postgres that runs on `data_dir`: it becomes readable when that process ends.
    None if none runs, or if the kernel offers no pidfd. The caller closes it."""
    found = running_postmaster(data_dir)
    if found is None:
        return None
    try:
        descriptor = os.pidfd_open(found.pid)
    except OSError:
        return None
    # If the same process still has the id now, the descriptor is of that process.
    if running_postmaster(data_dir) == found:
        return descriptor
    os.close(descriptor)
    return None


def start_postgres(
    data_dir: Path,
    config_file: Path,
    log_file: Path,
    *,
    on_spawn: Callable[[int], object] = lambda pid: None,
    lease: int | None = None,
    most_processes: int | None = None,
    is_standby: bool = False,
) -> None:
    """Start Postgres on `data_dir` and return once it accepts connections. A standby also returns
    once it has replayed the log that it has.

    It may take as long as it needs while it makes progress, for example to redo its log after a
    crash. Nothing else may run in the directory. The previous log is kept as `.log.1`. `on_spawn`
    gets the process id before Postgres has any children. Postgres inherits the descriptor `lease`.
    Its account may run `most_processes`. Raises StartFailed, StopFailed, patience.OutOfPatience;
    then nothing of it is left running.
    """
    with suppress(FileNotFoundError):
        log_file.replace(log_file.with_suffix(".log.1"))
    recovers = is_to_recover(data_dir)
    with ExitStack() as parts:
        parts.enter_context(step("starting"))
        child = _spawn(data_dir, config_file, log_file, lease, most_processes)
        try:
            on_spawn(child.pid)
            watch = Watch(child.pid)
            start = _Start(
                data_dir, child, watch, parts, is_to_recover=recovers, is_standby=is_standby
            )
            in_time = wait_while_progressing(start.is_over, start.look, stall_timeout=START_TIMEOUT)
        except BaseException:
            _give_up(child, data_dir)
            raise
        if not in_time or child.poll() is not None:
            _give_up(child, data_dir)
            words = last_errors(log_file)
            if not in_time:
                words = (
                    f"Postgres made no progress for {START_TIMEOUT:.0f} s while it started: {words}"
                )
            raise StartFailed(words)
    reached("ready")
    reap(child)


def stop_postgres(data_dir: Path, *, timeout: float = MAX_STOP_TIME) -> None:
    """Stop the Postgres of `data_dir` if one runs, dropping its connections (57P01).

    A fast shutdown comes first, and may take `timeout` seconds while it makes progress. If it makes
    none or takes longer, an immediate shutdown follows, then SIGKILL for every process. Raises
    StopFailed, patience.OutOfPatience.
    """
    postmaster = running_postmaster(data_dir)
    if postmaster is None:
        return
    look, until = Watch(postmaster.pid).look, time.monotonic() + timeout
    with step("stopping"):
        for number, stall_timeout in STOP_TIMEOUTS:
            with suppress(psutil.NoSuchProcess):
                postmaster.send_signal(number)
                # A process that a signal has stopped reacts to no other signal.
                continue_if_stopped(postmaster.pid)
            if wait_while_progressing(
                lambda: not is_alive(postmaster), look, stall_timeout=stall_timeout, until=until
            ):
                return
            fields = {"pid": postmaster.pid, "signal": number.name, "stall_timeout": stall_timeout}
            log.warning("Postgres does not stop", extra=fields)
        end_processes_in(data_dir)


def clear_stale_pid_file(data_dir: Path, *, sockets: Path | None = None) -> None:
    """Remove a postmaster.pid if no Postgres runs in this directory, and the sockets and the lock
    file that the dead Postgres left in `sockets`.

    After a power cut, its process id may be that of any process of the account. Postgres would take
    that process for another postmaster and refuse to start. Raises StopFailed.
    """
    if running_postmaster(data_dir) is not None:
        return
    if os.path.lexists(data_dir / "postmaster.pid"):
        # Without this file a new Postgres would start beside the processes that a killed one has
        # left.
        end_processes_in(data_dir)
        remove_from(data_dir, "postmaster.pid")
    if sockets is not None:
        remove_from(sockets, SOCKET, HIDDEN_SOCKET, f"{SOCKET}.lock")


def reload_postgres(data_dir: Path) -> None:
    """Make the running Postgres read its configuration file again."""
    if process := running_postmaster(data_dir):
        process.send_signal(signal.SIGHUP)


def check_configuration(data_dir: Path, config_file: Path) -> str | None:
    """Return Postgres's errors about `config_file`; None if it accepts the file.

    Raises StartFailed if the check does not end in time, patience.Cancelled.
    """
    bound = min(CHECK_TIMEOUT, remaining())
    command: list[Path | str] = [
        bin_for(data_dir) / "postgres",
        *("-D", data_dir, "-c", f"config_file={config_file}"),
        *("-c", "log_line_prefix=", "-C", "cluster_name"),
    ]
    with start_as(
        account_of(data_dir.parent), command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as check:
        try:
            words = _errors_within(bound, check)
        except BaseException:
            check.kill()
            raise
    return None if check.returncode == 0 else _complaints(words)


def last_errors(log_file: Path) -> str:
    """The complaints of Postgres at the end of `log_file`, in its own words."""
    flush_log(log_file)
    text = read_regular(log_file, 8192, from_end=True).decode(errors="replace")
    return _complaints(text) or "Postgres exited without a message"


def _complaints(text: str) -> str:
    """The messages in a Postgres log that matter after a change of its settings. Each appears once,
    since Postgres logs the same one for every session that it refuses."""
    found = COMPLAINT.findall(text)
    # "contains errors" names only the file; the errors themselves are logged before it, as LOG.
    refused = any("contains errors" in words for _, words in found)
    words = [
        words.strip()
        for label, words in found
        if (label != "LOG" or refused) and "contains errors" not in words
    ]
    return "; ".join(dict.fromkeys(words)) or _end_of(text.strip())


def _end_of(text: str) -> str:
    """The end of `text`, as much as an error may hold, from a whole word on. A path without its
    beginning would not be recognised as a path, and so not be removed."""
    if len(text) <= MAX_ERROR_LENGTH:
        return text
    _, *whole = re.split(r"\s+", text[-MAX_ERROR_LENGTH - 1 :], maxsplit=1)
    return "".join(whole)


def _spawn(
    data_dir: Path,
    config_file: Path,
    log_file: Path,
    lease: int | None,
    most_processes: int | None,
) -> "subprocess.Popen[bytes]":
    log = open_log(log_file)
    try:
        command = (
            bin_for(data_dir) / "postgres",
            "-D",
            data_dir,
            "-c",
            f"config_file={config_file}",
        )
        account = account_of(data_dir.parent)
        leases = [] if lease is None else [lease]
        return launch(
            account, command, most_processes=most_processes, stdout=log, stderr=log, pass_fds=leases
        )
    finally:
        os.close(log)


def _give_up(child: "subprocess.Popen[bytes]", data_dir: Path) -> None:
    """End a Postgres that does not start, and all that it has forked."""
    child.kill()
    child.wait()
    end_processes_in(data_dir)


@dataclass
class _Start:
    """A Postgres that is starting: which step it is in, and how far it has come."""

    _data_dir: Path
    _child: "subprocess.Popen[bytes]"
    _watch: Watch
    # Closes the step under way.
    _parts: ExitStack
    is_to_recover: bool
    is_standby: bool
    _recovering: Step | None = None
    _logged_at: float = -RECOVERY_LOG_INTERVAL

    def is_over(self) -> bool:
        """True if Postgres is ready, or has ended."""
        lines = _pid_file(self._data_dir)
        if len(lines) > 7 and lines[0] == str(self._child.pid):
            if self.is_to_recover and self._recovering is None:
                # It has allocated its memory and sockets, and now begins to redo its log. A short
                # one may be redone already.
                self._parts.close()
                self._recovering = self._parts.enter_context(step("recovering"))
            if lines[7].strip() == "ready":
                return True
            if self.is_standby and waits_for_log(self._child.pid):
                return True
        return self._child.poll() is not None

    def look(self) -> Movement:
        if self._recovering and time.monotonic() - self._logged_at >= RECOVERY_LOG_INTERVAL:
            self._logged_at = time.monotonic()
            if (left := bytes_to_redo(self._data_dir, self._child.pid)) is not None:
                self._recovering.detail.setdefault("bytes", left)
                self._recovering.detail["bytes_left"] = left
                fields = {"branch": self._data_dir.parent.name, "bytes_left": left}
                log.info("recovering", extra=fields)
        return self._watch.look()


def _errors_within(bound: float, check: "subprocess.Popen[bytes]") -> str:
    """Return the beginning of what the check of the configuration wrote to standard error until it
    ended: a file of the compute's account may have any number of errors. Raises StartFailed after
    `bound` seconds, patience.Cancelled."""
    deadline, words = time.monotonic() + bound, bytearray()
    assert check.stderr is not None
    while time.monotonic() < deadline:
        check_cancelled()
        if readable(check.stderr, timeout=CANCEL_CHECK_INTERVAL):
            part = os.read(check.stderr.fileno(), 1 << 16)
            words += part[: MAX_CHECK_BYTES - len(words)]
            if not part:
                # It may be stopped, so that it does not end.
                with suppress(subprocess.TimeoutExpired):
                    check.wait(max(0.0, deadline - time.monotonic()))
                    return words.decode(errors="replace")
    raise StartFailed(f"Postgres did not check its settings within {bound:.0f} s")


def _pid_file(data_dir: Path) -> list[str]:
    text = read_regular(data_dir / "postmaster.pid", MAX_PID_FILE_BYTES)
    return text.decode(errors="replace").splitlines()


def running_postmaster(data_dir: Path) -> psutil.Process | None:
    lines = _pid_file(data_dir)
    if not lines or not re.fullmatch("[0-9]{1,10}", lines[0]):
        return None
    return occupant(int(lines[0]), data_dir)
