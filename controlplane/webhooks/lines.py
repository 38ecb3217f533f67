"""The connections of delivery attempts under way. A connection is cut when its time is over, or
when this process is to exit.

A timeout for each read is not enough: a receiver that sends one byte per second never exceeds it.
Cutting a connection shuts its socket down while another thread may be waiting on it, in any state.
That thread then sees the end of the connection.
"""

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from controlplane.features import PutBack

# Set once this process is to exit. After that, no line is opened.
ending = threading.Event()
# The open lines. The operations of a set are atomic, so any thread may copy it at any time.
_open: set["Line"] = set()


class BrokenOff(PutBack):
    """The attempt was cut because this process exits. Another process must repeat it."""


class Line:
    """The successive connections of one attempt, which may take `timeout` seconds altogether.

    Raises BrokenOff if it is entered while this process is to exit.
    """

    def __init__(self, *, timeout: float) -> None:
        self._until = time.monotonic() + timeout
        self._timer = self._cut_after(timeout)
        # Guards the next two attributes: `cut` is called by the timer's thread, and by the thread
        # that ends this process.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cut = False

    def __enter__(self) -> Self:
        _open.add(self)
        if ending.is_set():
            # `break_off` may have copied `_open` before this line was in it.
            _open.discard(self)
            raise BrokenOff
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        _open.discard(self)

    def left(self) -> float:
        """The seconds that are left. Raises TimeoutError if none are left or the line was cut."""
        seconds = self._until - time.monotonic()
        if seconds <= 0 or self.is_cut:
            self.is_cut = True
            raise TimeoutError("timed out")
        return seconds

    def shorten(self, seconds: float) -> None:
        """Reduce the time that is left to at most this many seconds."""
        if time.monotonic() + seconds < self._until:
            self._until = time.monotonic() + seconds
            self._timer.cancel()
            self._timer = self._cut_after(seconds)
            self._timer.start()

    def hold(self, connected: socket.socket) -> None:
        """Make this the connection that `cut` shuts down; shut it down now if the line was cut."""
        with self._lock:
            self._socket = connected
            if self.is_cut:
                _shut_down(connected)

    def let_go(self) -> None:
        """Forget the connection. Call this before closing it, because its file descriptor may then
        be reused for another connection."""
        with self._lock:
            self._socket = None

    def cut(self) -> None:
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                _shut_down(self._socket)

    def check(self) -> None:
        """Raises BrokenOff if this process is to exit, which may be why the attempt failed."""
        if ending.is_set():
            raise BrokenOff

    def _cut_after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self.cut)
        timer.daemon = True
        return timer


def break_off() -> None:
    """Cut every open line and prevent new ones, because this process is to exit."""
    ending.set()
    for line in _open.copy():
        line.cut()


def _shut_down(connected: socket.socket) -> None:
    # Call the plain socket's method. The TLS socket's own method would discard the TLS state while
    # another thread reads from it.
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
