"""Looks into running computes, for the rounds that ask many of them: how one is answered, or
fails, concerns that endpoint alone.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from controlplane.models import Endpoint

log = logging.getLogger(__name__)

LOOKS_AT_ONCE = 8

Seen = TypeVar("Seen")


def look_into(
    endpoints: Iterable[Endpoint], look: Callable[[str], Seen], *, at: str
) -> Iterator[tuple[Endpoint, Seen]]:
    """What `look`, called with each endpoint's id, has found, as it comes in.

    Side by side: a compute that hangs must not hold up the look at all the others. A compute
    is a stranger's, so a look may fail in any way whatever; then what there is `at` the
    endpoint is unknown, which is logged, and it is left out.
    """
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="look") as threads:
        looks = {threads.submit(look, endpoint.id): endpoint for endpoint in endpoints}
        for done in as_completed(looks):
            endpoint = looks[done]
            try:
                seen = done.result()
            except Exception as error:
                fields = {"endpoint": endpoint.id, "unknown": at, "error": repr(error)}
                log.info("look failed", extra=fields)
                continue
            yield endpoint, seen
