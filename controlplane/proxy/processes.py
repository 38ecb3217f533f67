"""Runs the proxy in several processes and replaces those that die. Python uses one core for each
process, and a client waits less if another process can serve it."""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

log = logging.getLogger(__name__)

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
# A process that dies sooner than this is replaced only after a pause. In seconds.
_SHORT_LIFE = 5.0
_RESTART_PAUSE = 1.0


# The exit status of a process that cannot serve, however often it is started. All exit with it.
REFUSED = os.EX_CONFIG


def run_processes(count: int, run: Callable[[int], None]) -> None:
    """Calls `run` with each number below `count`, each in a process of its own, until SIGTERM or
    SIGINT, which is passed on to each of them.

    A process that dies is replaced, and other processes' clients are not affected. Listeners that
    were opened before stay open, so clients that connect in that time wait.

    Must be called before there are threads, event loops or database connections, because none of
    these survives a fork. The calling process goes on to fork, so it must never make any.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with threads cannot be forked safely")
    _ProcessSupervisor(run).supervise(count)


@dataclass(frozen=True, slots=True)
class _Child:
    number: int
    started: float


class _ProcessSupervisor:
    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        self._children: dict[int, _Child] = {}
        self._stopping = False
        self._refused = False
        # A pipe that is never written to. It reads as ended once this process has exited, however
        # that happened.
        self._parent_pipe_read, self._parent_pipe_write = os.pipe()

    def supervise(self, count: int) -> None:
        for name in _STOP_SIGNALS:
            signal.signal(name, self._stop)
        # The children share the memory of the present objects until a process writes to it. Garbage
        # collections would write to it, so they pass over these objects from here on.
        gc.collect()
        gc.freeze()
        for number in range(count):
            self._start(number)
        while self._children:
            pid, status = os.wait()
            child = self._children.pop(pid, None)
            if child is None:
                continue  # a child from before this process executed this program
            if os.waitstatus_to_exitcode(status) == REFUSED:
                self._refused = True
                self._stop(signal.SIGTERM, None)
            if not self._stopping:
                extra = {"pid": pid, "number": child.number, "status": status}
                log.error("proxy process died", extra=extra)
                self._pause_after(child)
            # A signal during the pause was passed on only to the processes that existed then.
            if not self._stopping:
                self._start(child.number)
        if self._refused:
            raise SystemExit(1)

    def _start(self, number: int) -> None:
        # Signals are blocked until the child has its own handlers and is in `_children`. A signal
        # in between would run this process's handler in the child, or not be passed on to it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            if self._stopping:
                return
            pid = os.fork()
            if pid == 0:
                self._run_child(number)
            self._children[pid] = _Child(number, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    def _run_child(self, number: int) -> NoReturn:
        status = 1
        try:
            for name in _STOP_SIGNALS:
                signal.signal(name, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            os.close(self._parent_pipe_write)
            threading.Thread(target=self._follow_parent, daemon=True).start()
            self._run(number)
            status = 0
        except SystemExit as ending:
            status = REFUSED if ending.code == REFUSED else 1
        except BaseException:
            log.exception("proxy process failed", extra={"number": number})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _follow_parent(self) -> None:
        os.read(self._parent_pipe_read, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _pause_after(self, child: _Child) -> None:
        if time.monotonic() - child.started < _SHORT_LIFE:
            time.sleep(_RESTART_PAUSE)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
