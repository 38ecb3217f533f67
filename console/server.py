"""The console's gunicorn worker."""

import ctypes
import gc
import signal

from gunicorn.workers.ggevent import GeventWorker

# New objects between two garbage collections.
COLLECT_AFTER = 50_000
# linux/prctl.h: PR_SET_PDEATHSIG
KILL_WITH_PARENT = 1


class ConsoleWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def init_process(self) -> None:
        # The kernel kills this process when its parent dies. Otherwise a worker that is still
        # loading, on a busy host for a minute, would hold the port, which the next parent needs.
        ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        # Objects that exist by now stay for the life of the process, so that collections can skip
        # them. Collections are rare, because reference counting frees what a page has made.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
