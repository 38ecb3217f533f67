"""Runs the proxy in several processes and replaces those that die. Python uses one core for each
process, and a client waits less if another process can serve it.

    main process ── supervising process ── processes that serve clients

On SIGTERM the main process, which is the one that was started, exits at once. The others, one
generation of the proxy, go on for a limited time, until another proxy is started and takes over
their listeners (`Handover`). Then they accept no more clients, and each ends with its last one. So
a restart refuses nobody and ends no connection. On SIGINT all of them end at once.
"""

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import FrameType
from typing import NoReturn

from controlplane.process_accounts import serve_until_replaced
from controlplane.proxy.listeners import Handover, is_ready

log = logging.getLogger(__name__)

# Called with the process's number, and with what it calls once it accepts clients.
Run = Callable[[int, Callable[[], object]], None]

# The exit status of a process that cannot serve, however often it is started. All exit with it.
EXIT_REFUSED = os.EX_CONFIG
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
# Signals for a process that serves clients: another proxy is about to be started, and it has been
# started. They are blocked until the process has handlers and unblocks them.
EXPECT_SUCCESSOR, DRAIN = signal.SIGUSR2, signal.SIGUSR1
# What the supervising process tells the main process, which may then exit.
LINGERS = b"l"

# A process that dies sooner than this is replaced only after a pause. In seconds.
_MIN_LIFETIME = 5.0
_RESTART_DELAY = 1.0


class _Phase(Enum):
    SERVING = auto()
    # Serves, and waits for the next proxy.
    LINGERING = auto()
    # Accepts no clients.
    DRAINING = auto()
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class _Child:
    number: int
    started: float


class Generation:
    """The processes that serve clients, and the process that supervises them, in which this is
    used. `main` is a pipe that ends with the main process; `word` is one that tells it to exit."""

    def __init__(
        self,
        count: int,
        run: Run,
        handover: Handover,
        lingers: Callable[[], object],
        main: int,
        word: int,
    ) -> None:
        self._count, self._run = count, run
        self._handover = handover
        self._lingers = lingers
        self._main, self._word = main, word
        self._phase = _Phase.SERVING
        self._refused = False
        self._children: dict[int, _Child] = {}
        # When to replace the processes that died early, by number, and when to give up waiting for
        # the next proxy.
        self._replacements: dict[int, float] = {}
        self._deadline: float | None = None
        self._ready: set[int] = set()
        self._offer: socket.socket | None = None
        self._selector = selectors.PollSelector()
        # Processes write their number to it once they accept clients.
        self._ready_read, self._ready_write = os.pipe()
        # A pipe that is never written to. It reads as ended once this process has exited.
        self._parent_pipe_read, self._parent_pipe_write = os.pipe()
        self._signal_read, self._signal_write = os.pipe()

    def supervise(self) -> None:
        """Returns when all processes have ended. Raises SystemExit if they refuse to serve."""
        os.set_blocking(self._signal_write, False)
        signal.set_wakeup_fd(self._signal_write)
        for name in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(name, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {EXPECT_SUCCESSOR, DRAIN})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        for descriptor, callback in (
            (self._signal_read, self._hear_signals),
            (self._ready_read, self._hear_ready),
            (self._main, self._main_has_exited),
        ):
            self._selector.register(descriptor, selectors.EVENT_READ, callback)
        # The children share the memory of the present objects until a process writes to it. Garbage
        # collections would write to it, so they pass over these objects from here on.
        gc.collect()
        gc.freeze()
        for number in range(self._count):
            self._start(number)
        while self._children or self._replacements:
            # One event at a time, because it may unregister what another one is about.
            for key, _ in self._selector.select(self._seconds_left())[:1]:
                key.data()
            self._run_due_actions()
        if self._refused:
            raise SystemExit(EXIT_REFUSED)

    def _seconds_left(self) -> float | None:
        times = [*self._replacements.values()]
        if self._deadline is not None:
            times.append(self._deadline)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _run_due_actions(self) -> None:
        now = time.monotonic()
        for number, due in list(self._replacements.items()):
            if due <= now:
                del self._replacements[number]
                self._start(number)
        if self._deadline is not None and self._deadline <= now:
            log.info("no other proxy was started")
            self._stop()

    def _hear_signals(self) -> None:
        for number in os.read(self._signal_read, 256):
            if number == signal.SIGCHLD:
                self._note_ended()
            elif number == signal.SIGINT:
                self._stop()
            else:
                self._linger()

    def _hear_ready(self) -> None:
        self._ready.update(os.read(self._ready_read, 256))
        if len(self._ready) == self._count:
            self._handover.tell_predecessor()

    def _main_has_exited(self) -> None:
        self._selector.unregister(self._main)
        self._linger()

    def _linger(self) -> None:
        if self._phase is not _Phase.SERVING:
            return
        if not self._handover.linger_within:
            self._stop()
            return
        self._phase = _Phase.LINGERING
        self._make_offer()
        self._signal_all(EXPECT_SUCCESSOR)
        self._lingers()
        with contextlib.suppress(OSError):
            os.write(self._word, LINGERS)

    def _make_offer(self) -> None:
        self._deadline = time.monotonic() + self._handover.linger_within
        try:
            self._offer = self._handover.offer()
        except OSError as error:
            log.error("cannot be taken over", extra={"error": str(error)})
            return
        accept = partial(self._accept_successor, self._offer)
        self._selector.register(self._offer, selectors.EVENT_READ, accept)

    def _accept_successor(self, offer: socket.socket) -> None:
        self._selector.unregister(offer)
        self._offer = None
        try:
            successor = self._handover.pass_on(offer)
        except OSError as error:
            log.warning("not taken over", extra={"error": str(error)})
            self._make_offer()
            return
        # Its start may take any time while it lives.
        self._deadline = None
        hear = partial(self._hear_successor, successor)
        self._selector.register(successor, selectors.EVENT_READ, hear)

    def _hear_successor(self, successor: socket.socket) -> None:
        self._selector.unregister(successor)
        with successor:
            ready = is_ready(successor)
        if self._phase is not _Phase.LINGERING:
            return
        if not ready:
            self._make_offer()
            return
        log.info("taken over by another proxy")
        self._phase = _Phase.DRAINING
        self._replacements.clear()
        self._signal_all(DRAIN)
        self._handover.close_listeners()
        # If this proxy was itself replaced before it was ready, its predecessor still waits.
        self._handover.tell_predecessor()

    def _stop(self) -> None:
        self._phase = _Phase.STOPPING
        self._deadline = None
        self._replacements.clear()
        if self._offer is not None:
            self._selector.unregister(self._offer)
            self._handover.withdraw()
            self._offer.close()
            self._offer = None
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _note_ended(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self._children.pop(pid)
            self._handover.counts.forget_ended()
            code = os.waitstatus_to_exitcode(status)
            if code == EXIT_REFUSED and self._phase is _Phase.SERVING:
                self._refused = True
                self._stop()
            if code in (0, -signal.SIGTERM) and self._phase is _Phase.LINGERING:
                # Each process was told to end, as systemd does with KillMode=control-group.
                self._stop()
            if self._phase in (_Phase.SERVING, _Phase.LINGERING):
                extra = {"pid": pid, "number": child.number, "status": status}
                log.error("proxy process died", extra=extra)
                lived = time.monotonic() - child.started
                pause = _RESTART_DELAY if lived < _MIN_LIFETIME else 0.0
                self._replacements[child.number] = time.monotonic() + pause

    def _start(self, number: int) -> None:
        # Signals are blocked until the child has its own handlers and is in `_children`. A signal
        # in between would run this process's handler in the child, or not be passed on to it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._run_child(number)
            self._children[pid] = _Child(number, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _run_child(self, number: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        for name in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        for descriptor in (self._parent_pipe_write, self._main, self._word):
            os.close(descriptor)
        if self._phase is _Phase.LINGERING:
            os.kill(os.getpid(), EXPECT_SUCCESSOR)
        threading.Thread(target=self._follow_parent, daemon=True).start()
        ready = partial(os.write, self._ready_write, bytes([number]))
        exit_after(lambda: self._run(number, ready))

    def _follow_parent(self) -> None:
        os.read(self._parent_pipe_read, 1)
        os.kill(os.getpid(), signal.SIGTERM)


def exit_after(run: Callable[[], object]) -> NoReturn:
    """Calls `run`, then ends this process, which was forked, without the cleanup of the process
    that it was forked from."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as ending:
        status = EXIT_REFUSED if ending.code == EXIT_REFUSED else 1
    except BaseException:
        log.exception("proxy process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_processes(
    count: int,
    run: Run,
    *,
    handover: Handover,
    lingers: Callable[[], object] = lambda: None,
) -> None:
    """Calls `run` with each number below `count`, each in a process of its own. Returns after
    SIGINT, when all of them have ended, and after SIGTERM, when they wait for the next proxy.
    If the `handover` must not linger, SIGTERM has the effect of SIGINT. The supervising process
    calls `lingers` when the wait begins.

    A process that dies is replaced, and other processes' clients are not affected. Listeners that
    were opened before stay open, so clients that connect in that time wait.

    Must be called before there are threads, event loops or database connections, because none of
    these survives a fork. The supervising process goes on to fork, so it must never make any.
    Raises SystemExit if the processes refuse to serve, or the supervising process was killed.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with threads cannot be forked safely")
    # Neither pipe is read for what it carries alone: each end also shows that the other one's
    # process has exited, however that happened.
    main_read, main_write = os.pipe()
    word_read, word_write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    supervisor = os.fork()
    if supervisor == 0:
        os.close(main_write)
        os.close(word_read)
        serve_until_replaced()
        generation = Generation(count, run, handover, lingers, main=main_read, word=word_write)
        exit_after(generation.supervise)
    os.close(main_read)
    os.close(word_write)
    # If process 1 of a container exits, all others are killed: then nothing can be handed over.
    replaced = {signal.SIGTERM: signal.SIGINT} if os.getpid() == 1 else {}
    for name in STOP_SIGNALS:
        signal.signal(name, partial(_pass_on, supervisor, replaced.get(name, name)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if os.read(word_read, 1) == LINGERS:
        return
    _, status = os.waitpid(supervisor, 0)
    if status:
        raise SystemExit(1)


def _pass_on(
    supervisor: int, number: signal.Signals, _received: int, _frame: FrameType | None
) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor, number)
