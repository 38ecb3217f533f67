"""Threads of the host process (`host_calls`) for the calls of the proxy."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Calls of these names wait for no lock, compute or database, and for no call that does.
_QUICK = {"running_endpoint", "open_run", "open_log", "open_certificate", "open_key"}
_QUICK_THREADS, _THREADS = 8, 128
# How many calls of one name may be under way: of an account, whose computes may hang, or, without
# one, in all.
_MAX_OF_ACCOUNT, _MAX_WITHOUT_ACCOUNT = 4, 32


class CallThreads:
    """Runs calls so that those of one account leave threads to the others. An account's further
    calls wait without a thread. The callers bound their number."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="quick")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="host")
        # Protects what follows: by name and account, how many calls are under way, and the others.
        self._lock = threading.Lock()
        self._under_way: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._waiting: defaultdict[tuple[str, str], deque[Callable[[], None]]] = defaultdict(deque)

    def run(self, name: str, account_id: str, call: Callable[[], None]) -> None:
        """Calls `call` in a thread, at once or later. It must raise nothing."""
        if name in _QUICK:
            self._quick.submit(call)
            return
        share = name, account_id
        with self._lock:
            self._waiting[share].append(call)
            self._start_next(share)

    def _start_next(self, share: tuple[str, str]) -> None:
        """The caller holds the lock."""
        most = _MAX_OF_ACCOUNT if share[1] else _MAX_WITHOUT_ACCOUNT
        if not self._waiting[share]:
            del self._waiting[share]
        elif self._under_way[share] < most:
            self._under_way[share] += 1
            self._threads.submit(self._run, share, self._waiting[share].popleft())

    def _run(self, share: tuple[str, str], call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            with self._lock:
                self._under_way[share] -= 1
                if not self._under_way[share]:
                    del self._under_way[share]
                self._start_next(share)
