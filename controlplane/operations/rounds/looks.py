"""Polls running computes, for the rounds that poll many of them. The answer or failure of one
affects only its own endpoint.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from contextvars import copy_context
from secrets import SystemRandom
from typing import Any, TypeVar

from django.db import connections

from controlplane.compute.host.patience import UNBOUNDED, patience
from controlplane.models import Endpoint

log = logging.getLogger(__name__)

# The second number of them is left for others, however many last.
MAX_CONCURRENT_LOOKS, MIN_CONCURRENT_LOOKS = 8, 2

# By what they look at: the looks of earlier rounds whose results no round has had yet.
_lasting: dict[str, dict[Future[Any], Endpoint]] = {}

Seen = TypeVar("Seen")


def look_at_each(
    endpoints: Iterable[Endpoint],
    look: Callable[[str], Seen],
    *,
    at: str,
    timeout: float = UNBOUNDED,
    waiting: float | None = None,
) -> Iterator[tuple[Endpoint, Seen]]:
    """Call `look` with the id of each endpoint; yield the endpoint with the result, as results come
    in.

    The calls run in parallel, so that a compute that hangs does not delay the others. All that one
    call waits for may take `timeout` seconds together. A compute is untrusted, so `look` may raise
    any exception. The endpoint is then left out, and the log says that what the caller looked `at`
    is unknown.

    With `waiting`, the caller no longer waits when no call has ended for so many seconds. The calls
    under way then go on; the next rounds leave their endpoints out, and the one after their end
    yields their results. For each `at`, one round at a time may do this.
    """
    lasting = _lasting.pop(at, {})
    left_out = {endpoint.id for endpoint in lasting.values()}
    awaited = {one for one in lasting if one.done()}

    def look_and_close(endpoint_id: str) -> Seen:
        try:
            with patience(timeout):
                return look(endpoint_id)
        finally:
            # The pool does not get back the connection of a thread that has ended.
            connections.close_all()

    count = max(MIN_CONCURRENT_LOOKS, MAX_CONCURRENT_LOOKS + len(awaited) - len(lasting))
    threads = ThreadPoolExecutor(count, thread_name_prefix="look")
    try:
        others = [endpoint for endpoint in endpoints if endpoint.id not in left_out]
        # At random: whoever comes last may have no turn in this round.
        for endpoint in SystemRandom().sample(others, len(others)):
            # In the round's context: `locks.apart` notes the round's problems there.
            future = threads.submit(copy_context().run, look_and_close, endpoint.id)
            lasting[future] = endpoint
            awaited.add(future)
        for done in _ended(awaited, waiting):
            endpoint = lasting.pop(done)
            try:
                result = done.result()
            except Exception as error:
                fields = {"endpoint": endpoint.id, "unknown": at, "error": repr(error)}
                log.info("look failed", extra=fields)
                continue
            yield endpoint, result
    finally:
        threads.shutdown(wait=waiting is None, cancel_futures=True)
        if waiting is not None:
            _lasting[at] = {one: lasting[one] for one in lasting if not one.cancelled()}


def _ended(looks: set[Future[Seen]], waiting: float | None) -> Iterator[Future[Seen]]:
    """Yield the looks as they end, until none has ended for `waiting` seconds."""
    left = 0
    while left != len(looks):
        left = len(looks)
        with suppress(TimeoutError):
            for done in as_completed(tuple(looks), waiting):
                looks.remove(done)
                yield done
