"""An `up` that takes the place of the one that runs on the same state directory, such as after an
upgrade. Computes keep running, and the proxy serves its clients meanwhile."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from controlplane.compute.data.state_directory import StateDirectoryUnusable, hold_state_directory

# Tells a running `up` to make room. It ends its processes, but no compute.
MAKE_ROOM = signal.SIGUSR2
# Seconds that the running `up` may take for that. Requests in flight take 30 at most.
_TIMEOUT = 90.0
_POLL_INTERVAL = 0.05


@contextmanager
def holding_state_directory(*, replace: bool, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the state directory as `hold_state_directory` does. If another `up` holds it and
    `replace` is true, tell that one to make room first. Raises StateDirectoryUnusable."""
    if replace:
        _replace(say)
    with hold_state_directory():
        path = _pid_file()
        path.write_text(f"{os.getpid()}\n")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _replace(say: Callable[[str], object]) -> None:
    if _is_free():
        return
    try:
        pid = int(_pid_file().read_text())
        os.kill(pid, MAKE_ROOM)
    except (OSError, ValueError) as error:
        raise StateDirectoryUnusable(
            f"the Perch that runs on {settings.STATE_DIR} cannot be replaced: stop it first"
        ) from error
    say(f"Replacing the Perch that runs (process {pid}) …")
    deadline = time.monotonic() + _TIMEOUT
    while not _is_free():
        if time.monotonic() > deadline:
            raise StateDirectoryUnusable(f"process {pid} did not make room within {_TIMEOUT:.0f} s")
        time.sleep(_POLL_INTERVAL)


def _is_free() -> bool:
    try:
        with hold_state_directory():
            return True
    except StateDirectoryUnusable:
        return False


def _pid_file() -> Path:
    return Path(settings.STATE_DIR) / "up.pid"
