"""The status of the service. `/status`, `/status/hosts`: of each region for every account, and of
each host for operators. `/healthz`, `/healthz/details`: for monitoring, whether the service can do
its work. `/livez`, `/readyz`: whether this process can, for what restarts it and for a load
balancer in front of it. `/certificate-authority.pem`: what clients must trust."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, TypeVar

from django.db import Error, close_old_connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.errors import error_response
from controlplane.api.http.routing import Router
from controlplane.api.responses.status import ServiceDetails, ServiceStatus
from controlplane.services.hosts import certificate_authorities
from controlplane.services.monitoring import health
from controlplane.services.monitoring.health import Health, ask_database, examine

router = Router(tags=["status"])


@router.get("/status", response=ServiceStatus)
def get_service_status(request: AuthenticatedRequest) -> dict[str, Any]:
    """Lists the regions. `missing` names the processes that give no sign of life on some of its
    hosts. Without its worker, a host's operations wait; without its proxy, clients cannot connect
    there."""
    return {"regions": health.region_statuses()}


@router.get("/status/hosts", response=ServiceDetails, summary="Get the hosts of the service")
def get_service_details(request: AuthenticatedRequest) -> dict[str, Any]:
    """Returns each host with its queues, computes, disk and versions. Only for the
    accounts that operate the service; other accounts are refused."""
    return health.service_details(request.auth)


Answer = TypeVar("Answer")

# Seconds within which the database must answer. The query runs in a thread, because no timeout of
# the connection ends it when the server hangs, such as a stopped Postgres process.
ANSWER_TIMEOUT = 3.0
# Seconds for which everybody gets the same answer: asking costs the database the same however many
# callers there are.
SHARED_FOR = 1.0
_threads = ThreadPoolExecutor(4, thread_name_prefix="health")
# Of each question: when it was asked last, and the answer.
_asked: dict[Callable[[], Any], tuple[float, Future[Any]]] = {}
_lock = threading.Lock()


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


def healthz_details(request: HttpRequest) -> HttpResponse:
    """The health in words, for who asks on this machine, not through a reverse proxy: it names
    hosts, versions and times of backups."""
    client = request.META.get("REMOTE_ADDR") or "127.0.0.1"  # none at a Unix socket
    if "HTTP_X_FORWARDED_FOR" in request.META or not ip_address(client).is_loopback:
        return error_response(request, 403, _ONLY_HERE)
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
    now = time.monotonic()
    with _lock:
        asked_at, answer = _asked.get(question, (0.0, None))
        if answer is None or now - asked_at > (SHARED_FOR if answer.done() else ANSWER_TIMEOUT):
            answer = _threads.submit(_ask_in_thread, question)
            _asked[question] = now, answer
    try:
        result: Answer = answer.result(ANSWER_TIMEOUT)
        return result
    except (Error, TimeoutError, CancelledError):
        answer.cancel()
        return TOO_LATE


def _ask_in_thread(question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    finally:
        close_old_connections()


_NONE = (
    "no host has a certificate authority of its own: the operator provides the certificates, "
    "or no proxy has been started yet"
)


_ONLY_HERE = (
    "/healthz/details answers only on the API's own machine; elsewhere, operators read "
    "/api/v2/status/hosts"
)


@require_safe
def certificate_authority(request: HttpRequest) -> HttpResponse:
    """Respond without authentication, as the certificates are public. 404 if there are none."""
    pem = certificate_authorities()
    if not pem:
        return error_response(request, 404, _NONE)
    return HttpResponse(pem, content_type="application/x-pem-file")
