"""`/healthz`: whether the service can do its work, for monitoring. `/healthz/details`: the same for
operators, with a description of each problem. `/livez` and `/readyz`: whether this process of the
API can, for what restarts it and for a load balancer in front of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import Error, close_old_connections
from django.http import HttpRequest, JsonResponse

from controlplane.services.monitoring.health import Health, ask_database, examine

Answer = TypeVar("Answer")

# Seconds within which the database must answer. The query runs in a thread, because no timeout of
# the connection ends it when the server hangs, such as a stopped Postgres process.
ANSWER_TIMEOUT = 3.0
_threads = ThreadPoolExecutor(4, thread_name_prefix="health")


def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the database answers and this region's worker and proxy give signs of life; the
    body names other problems. Otherwise 503, and the body names what is missing."""
    health = _health()
    body: dict[str, object] = {"status": health.status}
    if health.missing:
        body["missing"] = health.missing
    if health.problems:
        body["problems"] = health.problems
    return JsonResponse(body, status=503 if health.missing else 200)


def healthz_details(request: HttpRequest) -> JsonResponse:
    health = _health()
    body = {"status": health.status, "missing": health.missing, **health.details}
    return JsonResponse(body, status=503 if health.missing else 200)


def livez(request: HttpRequest) -> JsonResponse:
    """200 while this process answers at all."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """200 while this process can answer requests: the database answers. Workers and proxies do not
    matter; without them only operations wait."""
    if _ask_with_timeout(ask_database) is TOO_LATE:
        return JsonResponse({"status": "unavailable", "missing": ["database"]}, status=503)
    return JsonResponse({"status": "ok"})


def _health() -> Health:
    health = _ask_with_timeout(examine)
    return Health(["database"]) if isinstance(health, TooLate) else health


class TooLate:
    """The database did not answer in time."""


TOO_LATE = TooLate()


def _ask_with_timeout(question: Callable[[], Answer]) -> Answer | TooLate:
    answer = _threads.submit(_ask_in_thread, question)
    try:
        return answer.result(ANSWER_TIMEOUT)
    except (Error, TimeoutError):
        answer.cancel()
        return TOO_LATE


def _ask_in_thread(question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    finally:
        close_old_connections()
