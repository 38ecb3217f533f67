"""Calls of the floors below, which block: each in a thread, and none awaited without a bound."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.proxy.errors import ControlPlaneSilent
from controlplane.proxy.standstill import Standstill

Result = TypeVar("Result")

_MOST_AT_ONCE = 16


class ServiceCalls:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="service")

    async def call(
        self, function: Callable[[str], Result], argument: str, *, within: float
    ) -> Result:
        """What the function returns, `within` so many seconds.

        No timeout of a connection's own helps against a server that hangs on a unix socket, so
        it is the wait that ends. One that has not begun by then never does; one that has goes on
        in its thread, and gives its database connection back whenever the server answers.

        Raises what the function raises, ControlPlaneSilent for what the database does.
        """
        loop = asyncio.get_running_loop()
        # With the context, so that what it logs and schedules carries the client's id.
        run = partial(copy_context().run, _freeing, function, argument)
        called = loop.run_in_executor(self._threads, run)
        try:
            while True:
                with Standstill() as standstill:
                    await asyncio.wait([called], timeout=within)
                    if called.done():
                        return called.result()
                    # Its answer may be there.
                    if not standstill.has_been():
                        raise ControlPlaneSilent
        finally:
            called.cancel()

    def close(self) -> None:
        """Waits for none: one that hangs must not keep the proxy from its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _freeing(function: Callable[[str], Result], argument: str) -> Result:
    """Make the call, and give this thread's database connection back."""
    try:
        return function(argument)
    except (OperationalError, InterfaceError) as error:
        raise ControlPlaneSilent from error
    finally:
        close_old_connections()
