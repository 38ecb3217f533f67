"""Runs the proxy in several processes and replaces those that die. Python uses one core for each
process, and a client waits less if another process can serve it.

    main process ── supervising process ── processes that serve clients

On SIGTERM the main process, which is the one that was started, exits at once. The others, its
`generation`, go on for a limited time, until another proxy is started and takes over their
listeners (`handover`). Then they accept no more clients, and each ends with its last one. So a
restart refuses nobody and ends no connection. On SIGINT all of them end at once.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from controlplane.process_accounts import serve_until_replaced
from controlplane.proxy.generation import LINGERS, STOP_SIGNALS, Generation, Run, exit_after
from controlplane.proxy.handover import Handover


def run_processes(
    count: int,
    run: Run,
    *,
    handover: Handover | None = None,
    lingers: Callable[[], object] = lambda: None,
) -> None:
    """Calls `run` with each number below `count`, each in a process of its own. Returns after
    SIGINT, when all of them have ended, and after SIGTERM, when they wait for the next proxy.
    Without a `handover`, SIGTERM has the effect of SIGINT. The supervising process calls `lingers`
    when the wait begins.

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
