"""Words on every page when a worker or a proxy is down.

When a page is opened, its process asks the server for its status in the background, with the
user's key, at most every few seconds. No page waits for the answer: each shows what is known."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django.http import HttpRequest

from console.api.errors import APIError
from console.api.management_api import ManagementAPI
from console.api.resources.service_status import RegionStatus
from console.api.transport import Server
from console.sign_in import sessions

log = logging.getLogger(__name__)

# Seconds: how often to ask, and how long an answer is shown.
POLL_INTERVAL, NOTICE_TTL = 4, 30

MEANS = {
    "worker": "operations wait until it is back",
    "proxy": "clients cannot connect to databases",
}


@dataclass
class _Heard:
    regions: Sequence[RegionStatus] = ()
    # Times of time.monotonic().
    asked_at: float = float("-inf")
    heard_at: float = float("-inf")
    is_asking: bool = False


_lock = threading.Lock()
_heard: dict[str, _Heard] = {}
_threads = ThreadPoolExecutor(4, thread_name_prefix="service-status")


def ask(server: Server, key: str) -> None:
    """Start asking in the background, unless that was done just now."""
    now = time.monotonic()
    with _lock:
        heard = _heard.setdefault(server.url, _Heard())
        if heard.is_asking or now - heard.asked_at < POLL_INTERVAL:
            return
        heard.is_asking, heard.asked_at = True, now
    _threads.submit(_ask, ManagementAPI(key, server), heard)


def _ask(api: ManagementAPI, heard: _Heard) -> None:
    try:
        heard.regions = api.status.regions()
        heard.heard_at = time.monotonic()
    except APIError as problem:
        # If the API itself is down, every page says so anyway.
        log.info("status unknown", extra={"error": problem.message})
    finally:
        heard.is_asking = False


def service(request: HttpRequest) -> dict[str, object]:
    """Template context: sentences about processes that are down; mostly none."""
    sign_in = sessions.present(request) if hasattr(request, "session") else None
    return {"service_words": _messages(sign_in.shown_server) if sign_in else []}


def _messages(server: Server) -> list[str]:
    heard = _heard.get(server.url)
    if heard is None or time.monotonic() - heard.heard_at > NOTICE_TTL:
        return []
    is_one = len(heard.regions) == 1
    return [
        f"The {process} of {'this service' if is_one else f'the region {region.id}'} does not "
        f"respond: {MEANS.get(process, 'some functions are unavailable')}."
        for region in heard.regions
        for process in region.missing
    ]
