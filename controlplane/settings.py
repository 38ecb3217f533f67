"""Settings of the management service: the API, the worker, the proxy and the commands.

Everything has a default that is safe in production; the environment overrides it.
"""

import os
import sys
from pathlib import Path
from urllib.parse import quote

from controlplane import logs
from controlplane.environment import (
    default_state_dir,
    envbool,
    envbytes,
    envcount,
    envint,
    envnames,
    envnetworks,
    envsecret,
    envstr,
    postgres_database,
    private_directory,
)

PROCESS = logs.process_of(sys.argv)
LOGGING = logs.configuration(PROCESS)
if PROCESS in ("worker", "proxy"):
    # At once: what is wrong with the settings below is told in the log's format too.
    logs.begin(LOGGING)

ROOT = Path(__file__).resolve().parent.parent
IS_INSTALLED = (ROOT / "perch" / "manage.py").is_file()
# The folder of manage.py and the Procfile: the checkout's root, or the wheel's package `perch`.
BASE_DIR = ROOT / "perch" if IS_INSTALLED else ROOT

# Where this host keeps its branches, its own Postgres and its secrets.
STATE_DIR = Path(
    envstr("PERCH_STATE_DIR", str(default_state_dir(checkout=None if IS_INSTALLED else ROOT)))
).resolve()
# Unix sockets: their paths must stay under 107 bytes, however deep the state directory lies.
SOCKET_DIR = private_directory(STATE_DIR, "sockets", longest_child=64)
METADATA_SOCKET = str(SOCKET_DIR / "metadata")

# Signs and encrypts: Django's own needs, and the role passwords kept for reveal_password.
# Made by what serves alone: a command that is refused must not leave a state directory behind.
SECRET_KEY = envsecret(
    "PERCH_SECRET_KEY",
    STATE_DIR / "secret-key",
    makes=PROCESS in ("up", "api", "worker", "proxy", "runserver"),
)

POSTGRES_BIN = envstr("PERCH_POSTGRES_BIN", "")
# PgBouncer's program; None looks for it on the host, "" goes without.
PGBOUNCER = os.environ.get("PERCH_PGBOUNCER")
# As root, each compute runs under an account of its own, of these numbers; with a name, all run
# under that one account.
COMPUTE_UIDS = envstr("PERCH_COMPUTE_UIDS", "50000-59999")
COMPUTE_ACCOUNT = envstr("PERCH_COMPUTE_ACCOUNT", "")

# Networks that computes may connect to although they are not the Internet, separated by commas.
COMPUTE_ALLOWED_NETWORKS = envnetworks("PERCH_COMPUTE_ALLOWED_NETWORKS")

# Bytes of the disk that are kept back from branches; None for a part of it (compute.space).
DISK_RESERVE = envbytes("PERCH_DISK_RESERVE")

# The region this host serves: its worker's queue, and the host names of its endpoints.
REGION = envstr("PERCH_REGION", "local")
REGION_HOST = envstr("PERCH_REGION_HOST", "localhost")

PROXY_HOST = envstr("PERCH_HOST", "127.0.0.1")
PROXY_PORT = envint("PERCH_PROXY_PORT", 5432)
# A further port of the proxy, for SQL over HTTP and WebSocket at HTTP's own, 443; 0 for none.
PROXY_HTTP_PORT = envint("PERCH_HTTP_PORT", 0)
# How many processes share the port. Each has connections of its own to the database, and a session
# in each compute with clients: so more than a few are for hosts that are known to need them.
PROXY_PROCESSES = envint("PERCH_PROXY_PROCESSES", min(4, len(os.sched_getaffinity(0))))
# Where they reach each other. Not below the computes' sockets: their account owns those.
PROXY_SOCKET_DIR = private_directory(STATE_DIR, "proxy", longest_child=32)
# Who may connect without TLS: never, loopback, always.
PROXY_PLAIN_CONNECTIONS = envstr("PERCH_PLAIN_CONNECTIONS", "loopback")
# Networks of the load balancers that connections come through, separated by commas; each begins
# with a header of the PROXY protocol.
PROXY_LOAD_BALANCERS = envnetworks("PERCH_PROXY_PROTOCOL_FROM")
# PEM files; without them the proxy makes a certificate of its own.
TLS_CERTIFICATE = envstr("PERCH_TLS_CERTIFICATE", "")
TLS_KEY = envstr("PERCH_TLS_KEY", "")
# Seconds that a client waits for its compute.
WAKE_TIMEOUT = envint("PERCH_WAKE_TIMEOUT", 30)

# How many clients' wakes the worker has under way at once, and as many requests.
WORKER_CONCURRENCY = max(2, envint("PERCH_WORKER_CONCURRENCY", 32))
# The slots of each lane (`models.Lane`): a thread each, and at times a database connection.
LANE_SLOTS = {
    "wakes": WORKER_CONCURRENCY,
    "requests": WORKER_CONCURRENCY,
    "upkeep": max(2, WORKER_CONCURRENCY // 4),
}
# How many webhooks the worker sends to at once; a thread each, and at times a connection.
WEBHOOK_SLOTS = max(2, envint("PERCH_WEBHOOK_SLOTS", 16))
# Seconds that a receiver has for its answer, all in all.
WEBHOOK_TIMEOUT = envint("PERCH_WEBHOOK_TIMEOUT", 15)
# Networks that webhooks may lead to although they are not the Internet, separated by commas.
WEBHOOK_ALLOWED_NETWORKS = envnetworks("PERCH_WEBHOOK_ALLOWED_NETWORKS")
# Days that deliveries are kept which were made or given up.
WEBHOOK_RETENTION = envint("PERCH_WEBHOOK_RETENTION", 14)
# An endpoint whose suspend_timeout_seconds is 0 sleeps after this many seconds.
DEFAULT_SUSPEND_TIMEOUT = envint("PERCH_DEFAULT_SUSPEND_TIMEOUT", 300)

# Hours that a deleted project can be recovered, its data being kept; 0 removes it at once.
RECOVERY_HOURS = envint("PERCH_RECOVERY_HOURS", 24)
# Days that the rows of what was deleted are kept.
DELETED_RETENTION = envint("PERCH_DELETED_RETENTION", 30)

# Days that events are kept, and how many of one account: the oldest go first.
EVENT_RETENTION = envint("PERCH_EVENT_RETENTION", 90)
EVENTS_PER_ACCOUNT = envint("PERCH_EVENTS_PER_ACCOUNT", 1_000_000)
# Streams of events that an account may have open at each process of the API: each is a
# connection and a few tens of kilobytes.
STREAMS_PER_ACCOUNT = envint("PERCH_API_STREAMS_PER_ACCOUNT", 100)

# Seconds for the answer to a statement, 0 for no bound. The API's callers wait for theirs:
# with a connection that is not to be had or is no longer good, it still comes within 5 seconds.
DATABASE_TIMEOUT = envint("PERCH_DATABASE_TIMEOUT", 4 if PROCESS == "api" else 30)
DATABASES = {
    "default": postgres_database(
        envstr("DATABASE_URL", f"postgresql:///perch?user=perch&host={quote(METADATA_SOCKET)}"),
        pool_size=sum(LANE_SLOTS.values()) + WEBHOOK_SLOTS + 12,
        pool_timeout=3 if PROCESS == "api" else 10,
        statement_timeout=DATABASE_TIMEOUT,
    )
}

DEBUG = envbool("DEBUG", False)
# Of one account, at once, in each process of the API.
REQUESTS_PER_ACCOUNT = envint("PERCH_API_REQUESTS_PER_ACCOUNT", 16)
# Likewise, of requests that wait for an operation's end and hold nothing meanwhile.
WAITS_PER_ACCOUNT = envint("PERCH_API_WAITS_PER_ACCOUNT", 1000)
# Requests per minute of one account, in all processes of the API together: None for what its plan
# says, 0 for any number.
API_RATE_LIMIT = envcount("PERCH_API_RATE_LIMIT")
# The accounts whose keys may see how the service itself fares.
OPERATORS = envnames("PERCH_OPERATORS", "local")
# Keys travel in a header and nothing here is built from the Host header.
ALLOWED_HOSTS = ["*"]
# Of a request's body, in bytes; what callers send is a few hundred.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
INSTALLED_APPS = ["procrastinate.contrib.django", "controlplane"]
MIDDLEWARE = [
    "controlplane.api.request_log.RequestLogMiddleware",
    "controlplane.api.errors.JsonErrorsMiddleware",
    "controlplane.api.fair_shares.FairShareMiddleware",
    "controlplane.api.idempotency.IdempotencyMiddleware",
]
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
PROCRASTINATE_AUTODISCOVER_MODULE_NAME = "operations.tasks"
