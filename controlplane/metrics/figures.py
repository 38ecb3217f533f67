"""Perch's figures: those that its processes keep, and those that `manage.py metrics` reads itself.

Each label has few possible values: none is an id or something that a caller sent.
docs/reference/metrics.md describes all figures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

# Decides where prometheus-client keeps the values of what is declared below.
from controlplane.metrics import values as values

REGISTRY = CollectorRegistry()
# Upper bounds in seconds.
WAKE_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5)
OPERATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


def _counter(name: str, about: str, *labels: str) -> Counter:
    return Counter(name, about, labels, registry=REGISTRY)


def _gauge(name: str, about: str, *labels: str) -> Gauge:
    """A gauge whose values in the living processes are added up."""
    return Gauge(name, about, labels, registry=REGISTRY, multiprocess_mode="livesum")


def _histogram(name: str, about: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, about, labels, registry=REGISTRY, buckets=buckets)


# The proxy's

WAKES = _histogram(
    "perch_wake_seconds",
    "Seconds that a client waited for a start of its compute, until it was connected",
    "outcome",
    buckets=WAKE_BUCKETS,
)
WAKE_PARTS = _histogram(
    "perch_wake_part_seconds",
    "Seconds of each part of a wake, and of the parts before and after it",
    "part",
    buckets=WAKE_BUCKETS,
)
CONNECTIONS = _gauge("perch_connections", "Clients' connections to the proxy", "state")
CONNECTED = _counter("perch_connections_opened", "Clients connected to their compute", "kind")
PASSED_ON = _counter(
    "perch_connections_passed_on",
    "Clients, HTTP requests and cancel requests passed on to another host of the region",
    "kind",
)
REFUSALS = _counter("perch_connections_refused", "Clients and HTTP requests refused", "reason")
CLIENT_BYTES = _counter("perch_client_bytes", "Bytes between clients and the proxy", "direction")
HTTP_SESSIONS = _gauge("perch_http_sessions", "Idle sessions for SQL over HTTP")

# The API's

REQUESTS = _counter("perch_api_requests", "Requests answered", "method", "route", "status")
REQUEST_SECONDS = _histogram(
    "perch_api_request_seconds",
    "Seconds from a request to its response",
    *("method", "route"),
    buckets=REQUEST_BUCKETS,
)
REQUESTS_UNDER_WAY = _gauge("perch_api_requests_in_progress", "Requests being answered")

# The worker's

OPERATIONS = _counter("perch_operations", "Operations that have ended", "action", "status")
OPERATION_SECONDS = _histogram(
    "perch_operation_seconds",
    "Seconds from an operation's creation to its end",
    "action",
    buckets=OPERATION_BUCKETS,
)
FAILED_ATTEMPTS = _counter("perch_operation_attempts_failed", "Attempts that failed", "action")
ROUNDS = Summary("perch_round_seconds", "Seconds of a round", ["round"], registry=REGISTRY)
FAILED_ROUNDS = _counter("perch_rounds_failed", "Rounds that failed", "round")
POOLERS = _gauge("perch_poolers", "PgBouncer processes")
POOLER_CLIENTS = _gauge("perch_pooler_connections", "Connections to PgBouncer processes")
DELIVERIES = _counter("perch_webhook_attempts", "Attempts to send a webhook's delivery", "outcome")

# Every process's

PROCESSES = _gauge("perch_processes", "Living processes", "process")
STARTS = _counter("perch_process_starts", "Processes that have begun to serve", "process")
MEMORY = _gauge("perch_process_resident_bytes", "Resident memory", "process")
OPEN_FILES = _gauge("perch_process_open_files", "Open file descriptors", "process")
CPU = _counter("perch_process_cpu_seconds", "Processor time", "process")
POOL = _gauge(
    "perch_database_connections",
    "Connections to Perch's own Postgres in processes' pools",
    *("process", "state"),
)
POOL_WAITS = _counter(
    "perch_database_wait_seconds", "Seconds waited for a connection of a pool", "process"
)
POOL_TIMEOUTS = _counter(
    "perch_database_timeouts", "Waits for a connection of a pool that were given up", "process"
)
POOL_WAITING = _gauge("perch_database_waiting", "Waits for a connection of a pool", "process")
# The processes of the proxy have the same certificate, but for a moment after it was replaced.
CERTIFICATE_EXPIRY = Gauge(
    "perch_certificate_expiry_timestamp_seconds",
    "When a certificate expires, in Unix time",
    ["certificate"],
    registry=REGISTRY,
    multiprocess_mode="livemin",
)

# The gauges that `running.host_figures` reads from the host and the database, each with its
# description and labels. No process keeps them.
READ_FROM_HOST = {
    "perch_info": ("The version of Perch", "version"),
    "perch_database_up": ("1 if Perch's own database answers",),
    "perch_silence_seconds": ("Seconds since the last sign of life", "process"),
    "perch_problem": ("1 for a problem that the worker has found", "name"),
    "perch_queue_jobs": ("Jobs in the queue", "lane", "state"),
    "perch_queue_oldest_seconds": ("Seconds that the oldest job waits for a slot", "lane"),
    "perch_endpoints": ("Endpoints", "state"),
    "perch_branches": ("Branches, with hidden ones",),
    "perch_branch_bytes": ("Bytes of the branches' databases, as last measured",),
    "perch_webhook_deliveries_pending": ("Deliveries that are to be sent",),
    "perch_history_behind_branches": ("Branches whose newest log is not in the store",),
    "perch_history_behind_seconds": ("Seconds since when something is missing in the store",),
    "perch_backup_timestamp_seconds": (
        "When the last complete backup was taken, in Unix time; 0 for never",
    ),
    "perch_backup_verified_timestamp_seconds": (
        "When the newest backup that was verified was taken; 0 for none",
    ),
    "perch_disk_size_bytes": ("Size of the state directory's disk",),
    "perch_disk_free_bytes": ("Free bytes on the state directory's disk",),
    "perch_disk_reserve_bytes": ("The bytes that branches must leave free",),
}


def known_names() -> frozenset[str]:
    """The names of the figures that processes keep."""
    return frozenset(metric.name for metric in REGISTRY.collect())


def note_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count a response of the API. `route` is the template of the path; "" if none matches."""
    method, route = method if method in METHODS else "other", route or "none"
    REQUESTS.labels(method, route, status).inc()
    REQUEST_SECONDS.labels(method, route).observe(seconds)


def note_operation(action: str, status: str, seconds: float) -> None:
    """Count an operation that has ended, `seconds` after its creation."""
    OPERATIONS.labels(action, status).inc()
    OPERATION_SECONDS.labels(action).observe(seconds)
