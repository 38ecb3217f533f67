"""Settings of the management service: the API, the worker, the proxy and the commands.

Every setting has a default that is safe in production. Environment variables override it.
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
    envmajors,
    envminutes,
    envnames,
    envnetworks,
    envsecret,
    envsecrets,
    envstr,
    envweights,
    postgres_database,
    private_directory,
    program_of_checkout,
)

PROCESS = logs.process_of(sys.argv)
LOGGING = logs.configuration(PROCESS)
if PROCESS in ("worker", "proxy", "metrics"):
    # Configure logging now, so that errors in the settings below are logged in its format too.
    logs.begin(LOGGING)

ROOT = Path(__file__).resolve().parent.parent
IS_INSTALLED = (ROOT / "perch" / "manage.py").is_file()
# The folder of manage.py and the Procfile: the checkout's root, or the wheel's package `perch`.
BASE_DIR = ROOT / "perch" if IS_INSTALLED else ROOT
# How messages write the program that runs the commands: so that it can be typed as it stands.
PROGRAM = "perch" if IS_INSTALLED else program_of_checkout()

# This host's branches, its own Postgres and its secrets.
STATE_DIR = Path(
    envstr("PERCH_STATE_DIR", str(default_state_dir(checkout=None if IS_INSTALLED else ROOT)))
).resolve()
# For Unix sockets: their paths must have at most 107 bytes, however long the state directory's is.
SOCKET_DIR = private_directory(STATE_DIR, "sockets", longest_child=64)
METADATA_SOCKET = str(SOCKET_DIR / "metadata")

# Django signs with this key, and role passwords, webhooks' secrets and stored answers are encrypted
# with keys derived from it. Only the commands that serve create it: a command that is refused must
# not create a state directory.
SECRET_KEY = envsecret(
    "PERCH_SECRET_KEY",
    STATE_DIR / "secret-key",
    makes=PROCESS in ("up", "api", "worker", "proxy", "runserver"),
)
# Keys that were SECRET_KEY before: what was encrypted with them can still be read.
SECRET_KEY_FALLBACKS = envsecrets("PERCH_SECRET_KEY_FALLBACKS", STATE_DIR / "secret-key-fallbacks")

POSTGRES_BIN = envstr("PERCH_POSTGRES_BIN", "")
# The programs of other major versions, which projects can choose.
POSTGRES_BINS = envmajors("PERCH_POSTGRES_BINS")
# Path of PgBouncer. None: search for it on the host; "": run without PgBouncer.
PGBOUNCER = os.environ.get("PERCH_PGBOUNCER")
# If Perch runs as root: the range of account numbers, of which each branch gets its own for its
# compute. If COMPUTE_ACCOUNT names an account, all computes run under that one instead.
COMPUTE_UIDS = envstr("PERCH_COMPUTE_UIDS", "50000-59999")
COMPUTE_ACCOUNT = envstr("PERCH_COMPUTE_ACCOUNT", "")

# Networks that computes may connect to although they are not public, separated by commas.
COMPUTE_ALLOWED_NETWORKS = envnetworks("PERCH_COMPUTE_ALLOWED_NETWORKS")

# How much the room on each of these counts when a host is chosen for a new project.
PLACEMENT = envweights("PERCH_PLACEMENT", {"disk": 1.0, "memory": 1.0, "cpu": 1.0})

# Minutes of silence after which other hosts of the region declare a host lost and take its projects
# over. None: only an operator does.
HOST_LOST_AFTER = envminutes("PERCH_HOST_LOST_AFTER")

# Bytes of the disk that branches must leave free. None: a share of the disk (`compute.host.space`).
DISK_RESERVE = envbytes("PERCH_DISK_RESERVE")

# The object store that the history is copied to, as "s3://bucket/prefix"; "": it stays here.
HISTORY_STORE = envstr("PERCH_HISTORY_STORE", "")
# A passphrase, or 32 bytes in base64, that the copy is encrypted with. Without it, the key is
# derived from SECRET_KEY.
HISTORY_KEY = envstr("PERCH_HISTORY_KEY", "")
# The most bytes a second that are sent to the store. None: no limit.
HISTORY_STORE_BANDWIDTH = envbytes("PERCH_HISTORY_STORE_BANDWIDTH")
# Whether the store may be reached without TLS. obstore reads its other options itself.
HISTORY_STORE_ALLOW_HTTP = envbool("AWS_ALLOW_HTTP", False)

# The region that this host belongs to, and the host name of the region, which connection strings
# name. Its port is below.
REGION = envstr("PERCH_REGION", "local")
REGION_HOST = envstr("PERCH_REGION_HOST", "localhost")
# The name of this host, which selects the worker's queues; and its own host name, which leads to
# its proxy if the region has other hosts.
HOST_NAME = envstr("PERCH_HOST_NAME", REGION)
HOST_ADDRESS = envstr("PERCH_HOST_ADDRESS", REGION_HOST)

# Where the proxies of the region's other hosts connect to this one's, as HOST or HOST:PORT.
PEER_ADDRESS = envstr("PERCH_PEER_ADDRESS", HOST_ADDRESS)

PROXY_HOST = envstr("PERCH_HOST", "127.0.0.1")
PROXY_PORT = envint("PERCH_PROXY_PORT", 5432)
# The port of the region, at which a proxy or a load balancer accepts clients.
REGION_PORT = envint("PERCH_REGION_PORT", PROXY_PORT)
# An additional port of the proxy for SQL over HTTP and WebSocket, usually 443; 0 for none.
PROXY_HTTP_PORT = envint("PERCH_HTTP_PORT", 0)
# How many processes share the proxy's port. Each has its own connections to the metadata, and a
# session in each compute with clients. Use more than a few only on hosts that need them.
PROXY_PROCESSES = envint("PERCH_PROXY_PROCESSES", min(4, len(os.sched_getaffinity(0))))
# Seconds that a proxy which was told to stop (SIGTERM) serves on, until another one is started in
# its place; 0 stops it at once. Seconds that its clients may stay after that.
PROXY_HANDOVER_TIMEOUT = envint("PERCH_PROXY_HANDOVER_TIMEOUT", 120)
PROXY_DRAIN_TIMEOUT = envint("PERCH_PROXY_DRAIN_TIMEOUT", 3600)
# For the sockets between these processes. It is not below the directory of the computes' sockets,
# because the computes' account owns that.
PROXY_SOCKET_DIR = private_directory(STATE_DIR, "proxy", longest_child=32)
# When clients may connect without TLS: `never`, `loopback` (from loopback addresses) or `always`.
PROXY_PLAIN_CONNECTIONS = envstr("PERCH_PLAIN_CONNECTIONS", "loopback")
# Networks of load balancers, separated by commas. A connection from them must begin with a header
# of the PROXY protocol.
PROXY_LOAD_BALANCERS = envnetworks("PERCH_PROXY_PROTOCOL_FROM")
# PEM files. Without them the proxy creates its own certificate.
TLS_CERTIFICATE = envstr("PERCH_TLS_CERTIFICATE", "")
TLS_KEY = envstr("PERCH_TLS_KEY", "")
# Seconds that a client waits for its compute to start.
WAKE_TIMEOUT = envint("PERCH_WAKE_TIMEOUT", 30)

# How many operations of the lane `wakes` the worker runs at once, and as many of `requests`.
WORKER_CONCURRENCY = max(2, envint("PERCH_WORKER_CONCURRENCY", 32))
# The slots of each lane (`models.Lane`). A slot is a thread, which at times holds a connection of
# the worker's pool.
LANE_SLOTS = {
    "wakes": WORKER_CONCURRENCY,
    "requests": WORKER_CONCURRENCY,
    "upkeep": max(2, WORKER_CONCURRENCY // 4),
}
# How many webhooks the worker sends to at once. Each takes a thread.
WEBHOOK_SLOTS = max(2, envint("PERCH_WEBHOOK_SLOTS", 16))
# Seconds that one attempt to deliver may take in total.
WEBHOOK_TIMEOUT = envint("PERCH_WEBHOOK_TIMEOUT", 15)
# Networks that webhooks may send to although they are not public, separated by commas.
WEBHOOK_ALLOWED_NETWORKS = envnetworks("PERCH_WEBHOOK_ALLOWED_NETWORKS")
# Days that deliveries are kept after they were delivered or given up.
WEBHOOK_RETENTION = envint("PERCH_WEBHOOK_RETENTION", 14)
# An endpoint whose suspend_timeout_seconds is 0 is suspended after this many idle seconds.
DEFAULT_SUSPEND_TIMEOUT = envint("PERCH_DEFAULT_SUSPEND_TIMEOUT", 300)

# Hours that a deleted project can be recovered and its data is kept; 0 removes the data at once.
RECOVERY_HOURS = envint("PERCH_RECOVERY_HOURS", 24)
# Days that the rows of deleted projects, branches and endpoints are kept.
DELETED_RETENTION = envint("PERCH_DELETED_RETENTION", 30)
# Days that operations are kept.
OPERATION_RETENTION = envint("PERCH_OPERATION_RETENTION", 180)

# A problem of /healthz, once there was a backup: the last complete one is older than so many hours,
# or the last verified one than so many days; 0 for never.
BACKUP_HOURS = envint("PERCH_BACKUP_HOURS", 48)
BACKUP_VERIFIED_DAYS = envint("PERCH_BACKUP_VERIFIED_DAYS", 30)

# Days that events are kept, and how many of one account. The oldest are removed first.
EVENT_RETENTION = envint("PERCH_EVENT_RETENTION", 90)
EVENTS_PER_ACCOUNT = envint("PERCH_EVENTS_PER_ACCOUNT", 1_000_000)
# How many endpoints of an account are sampled in a day for their metrics.
SAMPLED_ENDPOINTS = envint("PERCH_SAMPLED_ENDPOINTS", 1000)
# Streams of events that an account may have open in each process of the API. Each takes a
# connection and a few tens of kilobytes.
STREAMS_PER_ACCOUNT = envint("PERCH_API_STREAMS_PER_ACCOUNT", 100)

# Seconds to wait for the answer to a statement; 0 for no limit. It is short in the API, so that its
# callers get an answer within 5 seconds, even if no connection is available or one is broken; and
# where the figures are served, for the same reason.
DATABASE_TIMEOUT = envint("PERCH_DATABASE_TIMEOUT", 4 if PROCESS in ("api", "metrics") else 30)
# The most connections of each process's pool. `database.connection_counts` says how many others
# there are, and whether the server has room for them.
POOL_SIZES = {
    "api": max(2, envint("PERCH_API_DATABASE_CONNECTIONS", 16)),
    "worker": max(4, envint("PERCH_WORKER_DATABASE_CONNECTIONS", 10)),
    "proxy": 2,
    "metrics": 2,
    "up": 2,
}
DATABASES = {
    "default": postgres_database(
        envstr("DATABASE_URL", f"postgresql:///perch?user=perch&host={quote(METADATA_SOCKET)}"),
        application_name=f"perch-{PROCESS}",
        pool_size=POOL_SIZES.get(PROCESS, 4),
        # Commands fail soon: somebody waits for them.
        pool_timeout=10 if PROCESS in ("worker", "proxy", "up") else 3,
        statement_timeout=DATABASE_TIMEOUT,
    )
}

# Whether the worker also writes the lines of its computes' and poolers' logs to standard output, as
# JSON: "redacted", "whole", or "" for no.
COMPUTE_LOGS_TO_STDOUT = envstr("PERCH_COMPUTE_LOGS_TO_STDOUT", "")
if COMPUTE_LOGS_TO_STDOUT not in ("", "redacted", "whole"):
    raise ValueError(
        f'PERCH_COMPUTE_LOGS_TO_STDOUT must be redacted or whole; got "{COMPUTE_LOGS_TO_STDOUT}"'
    )

# Where `manage.py metrics` listens; "": on loopback, at METRICS_PORT or the next free port; "off":
# no process keeps figures.
METRICS_LISTEN = envstr("PERCH_METRICS_LISTEN", "")
METRICS_PORT = 9464
# Where the processes of this host keep their figures.
METRICS_DIR = STATE_DIR / "metrics"
# Has the address at which the figures are served, for as long as they are.
METRICS_ADDRESS_FILE = STATE_DIR / "metrics-address"

DEBUG = envbool("DEBUG", False)
# Concurrent requests of one account in each process of the API: a quarter of the pool's connections
# by default, and half of them at most, so that connections are left for other accounts.
REQUESTS_PER_ACCOUNT = max(
    1,
    min(envint("PERCH_API_REQUESTS_PER_ACCOUNT", POOL_SIZES["api"] // 4), POOL_SIZES["api"] // 2),
)
# The same for requests that only wait, such as for an operation's end, and hold no database
# connection meanwhile.
WAITS_PER_ACCOUNT = envint("PERCH_API_WAITS_PER_ACCOUNT", 1000)
# Requests per minute of one account, in all processes of the API together. None: the limit of the
# account's plan; 0: no limit.
API_RATE_LIMIT = envcount("PERCH_API_RATE_LIMIT")
# Networks of the reverse proxies, and of the console, in front of the API: what they say in
# X-Forwarded-For is believed.
TRUSTED_PROXIES = envnetworks("PERCH_TRUSTED_PROXIES")
# Names of the accounts whose API keys may read the status of the service itself.
OPERATORS = envnames("PERCH_OPERATORS", "local")
# Any Host header is safe: keys are sent in a header, and no response is built from the Host header.
ALLOWED_HOSTS = ["*"]
# Maximum size of a request's body in bytes. Callers usually send a few hundred.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
INSTALLED_APPS = ["controlplane"]
MIDDLEWARE = [
    "controlplane.api.http.request_log.RequestLogMiddleware",
    "controlplane.api.http.errors.JsonErrorsMiddleware",
    "controlplane.api.http.request_limits.RequestLimitMiddleware",
    "controlplane.api.http.idempotency.IdempotencyMiddleware",
]
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
