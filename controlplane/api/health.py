"""`/healthz`: whether the service can do its work, for monitoring. `/healthz/details`: the same for
operators, with a description of each problem."""

from concurrent.futures import ThreadPoolExecutor

from django.db import Error, close_old_connections
from django.http import HttpRequest, JsonResponse

from controlplane.services.health import Health, examine

# Seconds within which the database must answer. The query runs in a thread, because no timeout of
# the connection ends it when the server hangs, such as a stopped Postgres process.
ANSWERS_WITHIN = 3.0
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


def _health() -> Health:
    answer = _threads.submit(_examine)
    try:
        return answer.result(ANSWERS_WITHIN)
    except (Error, TimeoutError):
        answer.cancel()
        return Health(["database"])


def _examine() -> Health:
    try:
        return examine()
    finally:
        close_old_connections()
