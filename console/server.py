"""The console's gunicorn worker."""

import ctypes
import gc
import signal
import socket
from collections import Counter
from contextlib import suppress
from typing import Any

from gunicorn.workers.ggevent import GeventWorker

# New objects between two garbage collections.
GC_THRESHOLD = 50_000
PR_SET_PDEATHSIG = 1


def shut_down(client: Any, how: int) -> None:
    """Let the greenlet that reads from the client's socket find its end, after what has arrived.
    gevent's own shutdown() would raise EBADF in it at once, which gunicorn logs as an error."""
    with suppress(OSError):
        client._sock.shutdown(how)


def make_room(awaited: dict[Any, str], limit: int) -> None:
    """If three quarters of a worker's connections await a request, end the oldest one of the
    address that has the most of them. `awaited` has their addresses."""
    if len(awaited) > limit * 3 // 4:
        ((address, _),) = Counter(awaited.values()).most_common(1)
        oldest = next(client for client, its in awaited.items() if its == address)
        del awaited[oldest]
        shut_down(oldest, socket.SHUT_RDWR)


class ConsoleWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The addresses of the connections that have sent no whole head yet, the oldest first.
        self.awaited: dict[Any, str] = {}

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        make_room(self.awaited, self.worker_connections)
        self.awaited[client] = addr[0]
        try:
            super().handle(listener, client, addr)
        finally:
            self.awaited.pop(client, None)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        self.awaited.pop(sock, None)
        try:
            super().handle_request(listener_name, req, sock, addr)
        finally:
            self.awaited[sock] = addr[0]

    def init_process(self) -> None:
        # The kernel kills this process when its parent dies. Otherwise a worker that is still
        # loading, on a busy host for a minute, would hold the port, which the next parent needs.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        # Objects that exist by now stay for the life of the process, so that collections can skip
        # them. Collections are rare, because reference counting frees what a page has made.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
