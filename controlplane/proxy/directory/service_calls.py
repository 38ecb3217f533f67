"""Calls blocking functions of the lower layers: each in a thread, and none without a time limit."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.proxy.directory.control_database import StallDetector
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

Result = TypeVar("Result")

_MAX_CONCURRENT_CALLS = 16


class ServiceCalls:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT_CALLS, thread_name_prefix="service")

    async def call(
        self, function: Callable[[str], Result], argument: str, *, within: float
    ) -> Result:
        """Returns what the function returns, if it does so `within` so many seconds.

        No timeout of a database connection helps against a server that hangs on a unix socket, so
        the waiting is limited instead. A call that has not begun by then never does. One that has
        begun goes on in its thread, and returns its database connection once the server answers.

        Raises what the function raises; ControlPlaneUnavailable if the time limit has passed or the
        database fails.
        """
        loop = asyncio.get_running_loop()
        # With the context, so that log lines and operations of the call carry the client's id.
        run = partial(copy_context().run, _freeing, function, argument)
        called = loop.run_in_executor(self._threads, run)
        try:
            while True:
                with StallDetector() as standstill:
                    await asyncio.wait([called], timeout=within)
                    if called.done():
                        return called.result()
                    # After a standstill of this process, the result may be there unread.
                    if not standstill.has_stalled():
                        raise ControlPlaneUnavailable
        finally:
            called.cancel()

    def close(self) -> None:
        """Waits for no call, because one that hangs must not keep the proxy from exiting."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _freeing(function: Callable[[str], Result], argument: str) -> Result:
    """Calls the function, then returns this thread's database connection to the pool."""
    try:
        return function(argument)
    except (OperationalError, InterfaceError) as error:
        raise ControlPlaneUnavailable from error
    finally:
        close_old_connections()
