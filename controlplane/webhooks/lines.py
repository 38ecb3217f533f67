"""The connections of attempts under way, which are cut when their time is over, or when this
process ends.

A bound on each read is not enough: a receiver that drips a byte a second meets it for ever. To
cut is to shut the socket down below whoever waits for it, in whatever state: he sees its end.
"""

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

# Set once this process is to end; then no line is opened any more.
ending = threading.Event()
# Those that are open. A set's own operations are atomic; a copy of it may be taken at any time.
_open: set["Line"] = set()


class BrokenOff(Exception):
    """The attempt was cut because this process ends; it is another one's to make again."""


class Line:
    """An attempt's connections, one after the other, of which `within` seconds are left in all.

    Raises BrokenOff where it is entered while this process ends.
    """

    def __init__(self, *, within: float) -> None:
        self._until = time.monotonic() + within
        self._timer = self._cut_after(within)
        # Guards the next two: the timer's thread, and whoever ends this process, cut.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cut = False

    def __enter__(self) -> Self:
        _open.add(self)
        if ending.is_set():
            # Whoever has set it may not have seen this one.
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
        """The seconds that are left. Raises TimeoutError where there are none."""
        seconds = self._until - time.monotonic()
        if seconds <= 0 or self.is_cut:
            self.is_cut = True
            raise TimeoutError("timed out")
        return seconds

    def shorten(self, seconds: float) -> None:
        """Have no more than so many seconds left."""
        if time.monotonic() + seconds < self._until:
            self._until = time.monotonic() + seconds
            self._timer.cancel()
            self._timer = self._cut_after(seconds)
            self._timer.start()

    def hold(self, connected: socket.socket) -> None:
        """Have this be the connection that is cut."""
        with self._lock:
            self._socket = connected
            if self.is_cut:
                _shut_down(connected)

    def let_go(self) -> None:
        """Before the connection is closed: its number may be another one's then."""
        with self._lock:
            self._socket = None

    def cut(self) -> None:
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                _shut_down(self._socket)

    def check(self) -> None:
        """Raises BrokenOff where it failed, or may have, because this process ends."""
        if ending.is_set():
            raise BrokenOff

    def _cut_after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self.cut)
        timer.daemon = True
        return timer


def break_off() -> None:
    """Cut every line, and let none be opened any more: this process ends."""
    ending.set()
    for line in _open.copy():
        line.cut()


def _shut_down(connected: socket.socket) -> None:
    # The plain socket's own: that of a TLS one would take its state from under its reader.
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
