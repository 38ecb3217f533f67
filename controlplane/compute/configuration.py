"""A compute's postgresql.conf: sized by its compute units, with the user's own settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MEGABYTES_PER_CU = 4096
# Of the account that owns the cluster; no client can be it.
PLATFORM_ROLE = "perch_platform"

SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")

# What keeps a compute on its socket, in its directory and away from the host's programs
# and files. These are the platform's alone: a request that names one is refused.
RESERVED_SETTINGS = frozenset(
    """
    allow_alter_system allow_system_table_mods archive_cleanup_command archive_command
    archive_library archive_mode bonjour bonjour_name cluster_name config_file data_directory
    dynamic_library_path event_source extension_control_path external_pid_file hba_file
    huge_pages ident_file include include_dir include_if_exists io_method jit_provider
    krb_server_keyfile listen_addresses local_preload_libraries log_destination log_directory
    log_file_mode log_filename logging_collector oauth_validator_libraries port
    post_auth_delay pre_auth_delay primary_conninfo recovery_end_command recovery_target
    recovery_target_action
    restart_after_crash restore_command session_preload_libraries shared_preload_libraries ssl
    ssl_ca_file ssl_cert_file ssl_crl_dir ssl_crl_file ssl_key_file ssl_passphrase_command
    superuser_reserved_connections syslog_facility syslog_ident unix_socket_directories
    unix_socket_group unix_socket_permissions wal_level zero_damaged_pages
    ignore_system_indexes ignore_checksum_failure ignore_invalid_pages full_page_writes fsync
    """.split()
)


@dataclass(frozen=True)
class ComputeSpec:
    """What a compute is to be: an endpoint on a branch, and its configuration."""

    endpoint_id: str
    branch_id: str
    min_cu: float
    max_cu: float
    pg_settings: Mapping[str, str] = field(default_factory=dict)
    # Whether transactions that do not say otherwise may only read.
    read_only: bool = False


def render_configuration(spec: ComputeSpec, *, socket_dir: Path, hba_file: Path) -> str:
    """The text of postgresql.conf. Later lines win, so the reserved ones stand last."""
    memory = spec.min_cu * MEGABYTES_PER_CU
    defaults = {
        "shared_buffers": f"{max(16, round(memory / 8))}MB",
        "effective_cache_size": f"{round(memory * 3 / 4)}MB",
        "maintenance_work_mem": f"{max(16, round(memory / 16))}MB",
        "max_connections": str(_max_connections(spec.max_cu)),
        "max_wal_size": "1GB",
        "min_wal_size": "32MB",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "password_encryption": "scram-sha-256",
        "log_line_prefix": "%m [%p] ",
        "log_timezone": "UTC",
        "timezone": "UTC",
        "dynamic_shared_memory_type": "posix",
    }
    reserved = {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        "hba_file": str(hba_file),
        "cluster_name": spec.endpoint_id,
        "wal_level": "replica",
        "ssl": "off",
        "logging_collector": "off",
        "log_destination": "stderr",
        "allow_alter_system": "off",
        "archive_mode": "off",
        "restart_after_crash": "on",
    }
    if spec.read_only:
        reserved["default_transaction_read_only"] = "on"
    lines = ["# Written by Perch at every start; changes here are lost."]
    for settings in (defaults, spec.pg_settings, reserved):
        lines += [f"{name} = {_quoted(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _max_connections(max_cu: float) -> int:
    """As published for this API's compute sizes: 112 at 0.25, 450 at 1, at most 4000."""
    return min(4000, round(450 * max_cu)) if max_cu != 0.25 else 112


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"
