"""Waits for the end of each compute process that this process has started, so that none stays a
zombie."""

import functools
import os
import select
import subprocess
import threading

Child = subprocess.Popen[bytes]


def reap(child: Child) -> None:
    """Wait for the child's end in the background. The caller may still poll the child, wait for it
    and kill it."""
    try:
        _watcher().add(child)
    except OSError:
        # There are no descriptors left, or the kernel offers no pidfds.
        threading.Thread(target=child.wait, daemon=True, name=f"reap-{child.pid}").start()


class _Watcher:
    """One thread waits for all children, by their pidfds. A pidfd becomes readable when its process
    has ended."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._children: dict[int, Child] = {}  # by pidfd
        threading.Thread(target=self._run, daemon=True, name="reaper").start()

    def add(self, child: Child) -> None:
        """Raises OSError."""
        # Only `child` reaps this process. So while its return code is not known, no other process
        # can have its id.
        if child.poll() is not None:
            return
        descriptor = os.pidfd_open(child.pid)
        # The thread may see the child's end as soon as the descriptor is registered.
        self._children[descriptor] = child
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError:
            del self._children[descriptor]
            os.close(descriptor)
            raise

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                child = self._children.pop(descriptor)
                # Closing it is not enough: a process that is being started may hold a copy.
                self._epoll.unregister(descriptor)
                os.close(descriptor)
                # Does not block, because the child has ended. `poll` would do nothing while another
                # thread polls the same child.
                child.wait()


@functools.cache
def _watcher() -> _Watcher:
    """Made when a process first starts a compute. The API starts none: its threads are gevent's,
    which removes `select.epoll`."""
    return _Watcher()
