"""Reports when a socket can be read or written, and when it is broken.

libuv, which uvloop uses, mistakes a pending socket error for a bad descriptor: it drops its watch
of the socket, and no callback is ever called. A connection that is reset at the wrong moment would
wait forever. So a separate epoll, which the loop watches, reports such errors.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable

_MAX_EVENTS = 256
_SCRATCH_BYTES = 65536  # bytes
# The most connections of this process with a large buffer in the kernel, of 2 MiB each. Clients
# that send much to busy computes could fill the proxy's memory otherwise.
MAX_LARGE_BUFFERS = 64


class Readiness:
    """Must be made and closed within its running loop. Each descriptor has at most one reader and
    one writer callback, and is known from `adopt` to `forget`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Memory that whoever reads within one callback may use until that returns.
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._adopted: set[int] = set()
        self._broken: set[int] = set()
        self._announced: set[int] = set()
        self._large_buffers: set[int] = set()
        self._errors = select.epoll()
        loop.add_reader(self._errors.fileno(), self._report_errors)

    def close(self) -> None:
        self.loop.remove_reader(self._errors.fileno())
        self._errors.close()

    def adopt(self, descriptor: int) -> None:
        self._adopted.add(descriptor)
        # epoll always reports errors. Edge-triggered, it reports each of them once.
        self._errors.register(descriptor, select.EPOLLET)

    def forget(self, descriptor: int) -> None:
        """Must be called before the descriptor is closed, because its number may be reused."""
        self._readers.pop(descriptor, None)
        self._writers.pop(descriptor, None)
        self._adopted.discard(descriptor)
        self._broken.discard(descriptor)
        self._announced.discard(descriptor)
        self._large_buffers.discard(descriptor)
        with contextlib.suppress(OSError, ValueError):
            self._errors.unregister(descriptor)

    def take_large_buffer(self, descriptor: int) -> bool:
        """Returns whether the descriptor gets a large buffer now, which it keeps until `forget`."""
        held = self._large_buffers
        if descriptor in held or len(held) >= MAX_LARGE_BUFFERS:
            return False
        held.add(descriptor)
        return True

    def announce_input(self, descriptor: int) -> None:
        """Calls the descriptor's reader once, and each later one as soon as it is added: a layer
        above the socket has ended the input or holds more, which the kernel knows nothing of."""
        self._announced.add(descriptor)
        self.loop.call_soon(self._call_reader, descriptor)

    def withdraw_input(self, descriptor: int) -> None:
        self._announced.discard(descriptor)

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        self._readers[descriptor] = callback
        if descriptor in self._broken:
            self.loop.call_soon(self._call, descriptor)
            return
        self.loop.add_reader(descriptor, callback)
        if descriptor in self._announced:
            self.loop.call_soon(self._call_reader, descriptor)

    def remove_reader(self, descriptor: int) -> None:
        self._readers.pop(descriptor, None)
        self.loop.remove_reader(descriptor)

    def add_writer(self, descriptor: int, callback: Callable[[], None]) -> None:
        self._writers[descriptor] = callback
        if descriptor in self._broken:
            self.loop.call_soon(self._call, descriptor)
        else:
            self.loop.add_writer(descriptor, callback)

    def remove_writer(self, descriptor: int) -> None:
        self._writers.pop(descriptor, None)
        self.loop.remove_writer(descriptor)

    def _report_errors(self) -> None:
        for descriptor, event in self._errors.poll(0, _MAX_EVENTS):
            # One that the error of another has just closed is not broken: its number may soon be
            # that of a new connection.
            if event & select.EPOLLERR and descriptor in self._adopted:
                self._broken.add(descriptor)
                self._call(descriptor)

    def _call_reader(self, descriptor: int) -> None:
        if descriptor in self._announced and (callback := self._readers.get(descriptor)):
            callback()

    def _call(self, descriptor: int) -> None:
        """Calls the broken socket's callbacks, so that they try the socket and get its error."""
        for waiting in (self._readers, self._writers):
            if callback := waiting.get(descriptor):
                callback()


def resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
