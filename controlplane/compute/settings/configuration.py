"""A compute's postgresql.conf: sized by its compute units, with its owner's own settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.compute.host.filesystem import is_little_dirty
from controlplane.compute.host.listener_socket import sockets_mode

MEGABYTES_PER_CU = 4096
RESERVED_CONNECTIONS = 7
# The first major version that can refuse ALTER SYSTEM. Before, only a superuser can run it, or who
# was granted that by one: no client.
ALTER_SYSTEM_OFF_SINCE = 17
# The first major version in which CREATEROLE is limited to the roles that its holder has made.
CREATEROLE_LIMITED_SINCE = 16
# The role that owns the cluster; no client can log in as it.
PLATFORM_ROLE = "perch_platform"
# Its replication slots: of the history, and of the receiver on another host.
HISTORY_SLOT, REGION_SLOT = "perch_history", "perch_region"

# The locale of new projects. Those of earlier releases have C, in which only ASCII has case.
LOCALE = "C.UTF-8"

SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")


@dataclass(frozen=True)
class ComputeSpec:
    """What a compute should be: an endpoint on a branch, and its configuration."""

    endpoint_id: str
    branch_id: str
    min_cu: float
    max_cu: float
    # Only settings that an owner may set: see `postgres_settings`.
    pg_settings: Mapping[str, str] = field(default_factory=dict)
    # Only settings in `pooler_settings.ALLOWED`.
    pgbouncer_settings: Mapping[str, str] = field(default_factory=dict)
    # True if the write-ahead log has to hold what logical replication needs.
    logical_replication: bool = False
    # True if transactions are read-only unless they say otherwise.
    read_only: bool = False
    # True if the compute may connect to no address: see `outbound`.
    blocks_outbound: bool = False
    # Bytes that the account's plan allows for a branch; None for no limit.
    storage_limit: int | None = None


@dataclass(frozen=True)
class ExtensionPaths:
    """Where Postgres finds the extensions that the platform offers beside its own, and the library
    that it loads at its start; "" for none."""

    control_path: str = ""
    preloaded: str = ""


def render_configuration(
    spec: ComputeSpec,
    major: int,
    *,
    socket_dir: Path,
    access: Mapping[str, str],
    extensions: ExtensionPaths,
) -> str:
    """The text of postgresql.conf for a Postgres of the major version; `access` is that of
    `state_directory.access_files`. Later lines win, so the reserved settings come last."""
    reserved = {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": sockets_mode(),
        **access,
        "cluster_name": spec.endpoint_id,
        "wal_level": "logical" if spec.logical_replication else "replica",
        # An absent subscriber must not fill the disk: past this much log, its slot is lost.
        "max_slot_wal_keep_size": f"{bounded(2 << 30, spec.storage_limit) >> 20}MB",
        "ssl": "off",
        "logging_collector": "off",
        "log_destination": "stderr",
        "archive_mode": "off",
        # Nobody may create a subscription, so the start needs no process that looks for some.
        "max_logical_replication_workers": "0",
        "restart_after_crash": "on",
        # What Postgres flushes before it redoes its log.
        "recovery_init_sync_method": "syncfs" if is_little_dirty() else "fsync",
        # For the platform's own sessions, when clients have taken all other connections.
        "superuser_reserved_connections": str(RESERVED_CONNECTIONS),
    }
    if major >= ALTER_SYSTEM_OFF_SINCE:
        reserved["allow_alter_system"] = "off"
    if extensions.control_path:
        reserved["extension_control_path"] = extensions.control_path
    if extensions.preloaded:
        reserved["shared_preload_libraries"] = extensions.preloaded
        # Bounds its memory to a few megabytes. Utility statements may hold a password.
        reserved["pg_stat_statements.max"] = "2000"
        reserved["pg_stat_statements.track_utility"] = "off"
    if spec.read_only:
        reserved["default_transaction_read_only"] = "on"
    lines = ["# Written by Perch at every start; changes here are lost."]
    defaults = default_settings(min_cu=spec.min_cu, max_cu=spec.max_cu, storage=spec.storage_limit)
    if major < CREATEROLE_LIMITED_SINCE:
        del defaults["createrole_self_grant"]
    for settings in (defaults, spec.pg_settings, reserved):
        lines += [f"{name} = {_quoted(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def default_settings(*, min_cu: float, max_cu: float, storage: int | None = None) -> dict[str, str]:
    """The settings of an endpoint of that size if its owner sets nothing else. `storage` is how
    many bytes the plan allows for a branch; None for no limit."""
    memory = min_cu * MEGABYTES_PER_CU
    return {
        "shared_buffers": f"{max(16, round(memory / 8))}MB",
        "effective_cache_size": f"{round(memory * 3 / 4)}MB",
        "maintenance_work_mem": f"{max(16, round(memory / 16))}MB",
        "max_connections": str(max_connections(max_cu)),
        "max_wal_size": "1GB",
        "min_wal_size": "32MB",
        "temp_file_limit": f"{bounded(max_temporary(max_cu), storage) >> 20}MB",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "password_encryption": "scram-sha-256",
        # Who creates a role by SQL may also use it: `SET ROLE`, `OWNER TO`.
        "createrole_self_grant": "set, inherit",
        "log_line_prefix": "%m [%p] ",
        "log_timezone": "UTC",
        "timezone": "UTC",
        # Files of the branch. /dev/shm is one for all, and who fills it would stop the others.
        "dynamic_shared_memory_type": "mmap",
    }


def max_temporary(max_cu: float) -> int:
    """Bytes of temporary files that one session may have, unless the plan allows less: enough to
    sort, or index, a large table."""
    return max(4, round(16 * max_cu)) << 30


def bounded(size: int, storage: int | None) -> int:
    """`size`, but no more than `storage`, the bytes that the plan allows for a branch."""
    return size if storage is None else min(size, storage)


def max_connections(max_cu: float) -> int:
    """As Neon publishes for its compute sizes: 112 at 0.25, 450 at 1, at most 4000."""
    return min(4000, round(450 * max_cu)) if max_cu != 0.25 else 112


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"
