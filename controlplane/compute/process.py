"""One Postgres process on one data directory: start it, find it, stop it.

Everything is read from the data directory's postmaster.pid and from the process itself,
so any worker finds a Postgres that another worker started.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from controlplane.compute.accounts import account_of, running_as
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.logs import flush_log, open_log

POLL_INTERVAL = 0.001  # seconds


class StartFailed(Exception):
    """Postgres did not come up; the message is its own last words."""


class StopFailed(Exception):
    """Postgres could not even be killed."""


def socket_dir_of(data_dir: Path) -> Path | None:
    """Where the Postgres that runs on `data_dir` listens."""
    if not _postmaster(data_dir):
        return None
    lines = _pid_file(data_dir)
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def start_postgres(
    data_dir: Path,
    config_file: Path,
    log_file: Path,
    *,
    timeout: float = 60.0,
    on_spawn: Callable[[int], object] = lambda pid: None,
) -> None:
    """Start Postgres on `data_dir` and return once it accepts connections.

    `timeout` is in seconds and covers crash recovery. The log is begun anew; the one
    before it stays beside it. `on_spawn` gets the process id before Postgres has any
    children. Raises StartFailed.
    """
    deadline = time.monotonic() + timeout
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".log.1"))
    while True:
        child = _spawn(data_dir, config_file, log_file)
        on_spawn(child.pid)
        if wait_until(partial(_is_ready_or_over, data_dir, child), deadline):
            if child.poll() is None:
                reap(child)
                return
            words = last_words(log_file)
            # The backends of a postmaster that was killed go by themselves, soon.
            if "shared memory block" in words and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise StartFailed(words)
        stop_postgres(data_dir, timeout=5)
        raise StartFailed(f"Postgres was not ready after {timeout:.0f} s: {last_words(log_file)}")


def stop_postgres(data_dir: Path, *, timeout: float = 30.0) -> None:
    """Stop the Postgres of `data_dir` if one runs, dropping its connections (57P01).

    A fast shutdown first; after `timeout` seconds an immediate one, then SIGKILL.
    Raises StopFailed.
    """
    process = _postmaster(data_dir)
    if process is None:
        return
    children: list[psutil.Process] = []
    for number, seconds in (
        (signal.SIGINT, timeout),
        (signal.SIGQUIT, 5.0),
        (signal.SIGKILL, 5.0),
    ):
        with suppress(psutil.NoSuchProcess):
            if number == signal.SIGKILL:
                children = process.children(recursive=True)
            process.send_signal(number)
        if wait_until(lambda: not is_alive(process), time.monotonic() + seconds):
            break
    else:
        raise StopFailed(f"process {process.pid} of {data_dir} does not end")
    # After a kill the backends are still there; none may write to the directory any more.
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    wait_until(lambda: not any(map(is_alive, children)), time.monotonic() + 5)


def reload_postgres(data_dir: Path) -> None:
    """Have the running Postgres read its configuration file again."""
    if process := _postmaster(data_dir):
        process.send_signal(signal.SIGHUP)


def check_configuration(data_dir: Path, config_file: Path) -> str | None:
    """What Postgres says against `config_file`, or None where it accepts it."""
    done = subprocess.run(
        [
            postgres_bin() / "postgres",
            *("-D", data_dir, "-c", f"config_file={config_file}"),
            *("-c", "log_line_prefix=", "-C", "cluster_name"),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
        **running_as(account_of(data_dir.parent)),
    )
    return None if done.returncode == 0 else _complaints(done.stderr)


def last_words(log_file: Path) -> str:
    """What Postgres complained of at the end of `log_file`, in its own words."""
    flush_log(log_file)
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "Postgres left no log"
    return _complaints(text) or "Postgres ended without a word"


def _complaints(text: str) -> str:
    """The messages of a Postgres log that matter to whoever changed its settings."""
    found = re.findall(r"\b(LOG|FATAL|PANIC|ERROR|DETAIL|HINT):  (.*)", text)
    # Names the file alone; the lines that it means were logged before it, as LOG.
    refused = any("contains errors" in words for _, words in found)
    words = [
        words.strip()
        for label, words in found
        if (label != "LOG" or refused) and "contains errors" not in words
    ]
    return "; ".join(words) or text.strip()[-400:]


def reap(child: "subprocess.Popen[bytes]") -> None:
    """Wait for the child's end in the background: dead, it would linger as a zombie."""
    threading.Thread(target=child.wait, daemon=True, name=f"reap-{child.pid}").start()


def _spawn(data_dir: Path, config_file: Path, log_file: Path) -> "subprocess.Popen[bytes]":
    log = open_log(log_file)
    try:
        return subprocess.Popen(
            [postgres_bin() / "postgres", "-D", data_dir, "-c", f"config_file={config_file}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Of its own session: it must survive the worker and its terminal.
            start_new_session=True,
            **running_as(account_of(data_dir.parent)),
        )
    finally:
        os.close(log)


def _pid_file(data_dir: Path) -> list[str]:
    try:
        return (data_dir / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _postmaster(data_dir: Path) -> psutil.Process | None:
    lines = _pid_file(data_dir)
    if not lines or not lines[0].lstrip("-").isdigit():
        return None
    try:
        process = psutil.Process(abs(int(lines[0])))
        # Process ids come round again: it is ours only if it works in our directory.
        if is_alive(process) and Path(process.cwd()) == data_dir.resolve():
            return process
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return None


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs; one that has ended but was not waited for does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_ready(data_dir: Path, pid: int) -> bool:
    lines = _pid_file(data_dir)
    return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _is_ready_or_over(data_dir: Path, child: "subprocess.Popen[bytes]") -> bool:
    return _is_ready(data_dir, child.pid) or child.poll() is not None


def wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    """Wait until `condition` holds; False if `deadline` (monotonic seconds) came first."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True
