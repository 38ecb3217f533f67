"""Polls running computes, for the rounds that poll many of them. The answer or failure of one
affects only its own endpoint.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from django.db import connections

from controlplane.compute.host.patience import UNBOUNDED, patience
from controlplane.models import Endpoint

log = logging.getLogger(__name__)

MAX_CONCURRENT_LOOKS = 8

Seen = TypeVar("Seen")


def look_at_each(
    endpoints: Iterable[Endpoint],
    look: Callable[[str], Seen],
    *,
    at: str,
    within: float = UNBOUNDED,
) -> Iterator[tuple[Endpoint, Seen]]:
    """Call `look` with the id of each endpoint; yield the endpoint with the result, as results come
    in.

    The calls run in parallel, so that a compute that hangs does not delay the others. All that one
    call waits for may take `within` seconds together. A compute is untrusted, so `look` may raise
    any exception. The endpoint is then left out, and the log says that what the caller looked `at`
    is unknown.
    """

    def look_and_close(endpoint_id: str) -> Seen:
        try:
            with patience(within):
                return look(endpoint_id)
        finally:
            # The pool does not get back the connection of a thread that has ended.
            connections.close_all()

    with ThreadPoolExecutor(MAX_CONCURRENT_LOOKS, thread_name_prefix="look") as threads:
        looks = {threads.submit(look_and_close, endpoint.id): endpoint for endpoint in endpoints}
        for done in as_completed(looks):
            endpoint = looks[done]
            try:
                result = done.result()
            except Exception as error:
                fields = {"endpoint": endpoint.id, "unknown": at, "error": repr(error)}
                log.info("look failed", extra=fields)
                continue
            yield endpoint, result
