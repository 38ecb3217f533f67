"""Runs the proxy in several processes and keeps their number up. Python uses one core a process,
and a client waits less where another one can serve it."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

log = logging.getLogger(__name__)

_SHORT_LIFE_SECONDS = 5.0
_RESTART_PAUSE_SECONDS = 1.0


def run_processes(count: int, run: Callable[[int], None]) -> None:
    """Calls `run` with each number below `count`, each in a process of its own, until SIGTERM or
    SIGINT, which every one of them gets too. One that dies is started again, and harms no other's
    clients. With a count of 1, all of it happens in this process.

    Must be called before there are threads, event loops or database connections; the listeners of
    `controlplane.proxy.server.open_listeners` are opened before and shared.
    """
    if count == 1:
        run(0)
        return
    _Family(run).keep_up(count)


class _Family:
    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        self._numbers: dict[int, int] = {}
        self._stopping = False
        # Nobody writes to it: it ends when we do, however that happens.
        self._lifeline, self._end_of_lifeline = os.pipe()

    def keep_up(self, count: int) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        for number in range(count):
            self._start(number)
        while self._numbers:
            pid, status = os.wait()
            number = self._numbers.pop(pid)
            if not self._stopping:
                log.error("proxy process died", extra={"number": number, "status": status})
                self._pause()
            if not self._stopping:
                self._start(number)

    def _start(self, number: int) -> None:
        self._started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._be_child(number)
        self._numbers[pid] = number

    def _be_child(self, number: int) -> NoReturn:
        status = 1
        try:
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, signal.SIG_DFL)
            os.close(self._end_of_lifeline)
            threading.Thread(target=self._follow_parent, daemon=True).start()
            self._run(number)
            status = 0
        except BaseException:
            log.exception("proxy process failed", extra={"number": number})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _follow_parent(self) -> None:
        os.read(self._lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _pause(self) -> None:
        if time.monotonic() - self._started < _SHORT_LIFE_SECONDS:
            time.sleep(_RESTART_PAUSE_SECONDS)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for pid in self._numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
