"""The private Postgres for Perch's own data, where no DATABASE_URL names another."""

import subprocess
from pathlib import Path

import psycopg
from django.conf import settings
from psycopg import sql

from controlplane.compute.binaries import as_compute_account, own_directory, postgres_bin
from controlplane.compute.filesystem import remove_tree, sync_tree
from controlplane.compute.process import clear_stale_pid_file

USER = DATABASE = "perch"


def metadata_socket_dir() -> Path:
    return Path(settings.SOCKET_DIR) / "metadata"


def create_metadata_cluster() -> None:
    """Make the cluster's directory where it is not there yet."""
    data = _data_dir()
    own_directory(metadata_socket_dir())
    if data.exists():
        clear_stale_pid_file(data, sockets=metadata_socket_dir())
        return
    staging = own_directory(data.with_name(".metadata"))
    remove_tree(staging)
    own_directory(staging)
    subprocess.run(
        [
            postgres_bin() / "initdb",
            *("--pgdata", staging, "--username", USER, "--encoding", "UTF8"),
            *("--auth", "trust", "--no-locale", "--no-sync", "--no-instructions"),
        ],
        check=True,
        capture_output=True,
        **as_compute_account(),
    )
    sync_tree(staging)
    staging.rename(data)


def metadata_command() -> list[str]:
    """The command line that runs the cluster in the foreground, on its socket only."""
    return [
        str(postgres_bin() / "postgres"),
        *("-D", str(_data_dir())),
        *("-c", "listen_addresses="),
        *("-c", f"unix_socket_directories={metadata_socket_dir()}"),
        *("-c", "unix_socket_permissions=0700"),
        *("-c", "max_connections=200"),
    ]


def create_metadata_database() -> bool:
    """Make the database in the running cluster; False while the cluster does not answer."""
    try:
        connection = psycopg.connect(
            host=str(metadata_socket_dir()), user=USER, dbname="postgres", autocommit=True
        )
    except psycopg.OperationalError:
        return False
    with connection:
        present = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
        if present.fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    return True


def why_unreachable(url: str) -> str | None:
    """What keeps us from the database that `url` names; None where nothing does."""
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.OperationalError as error:
        return str(error)
    return None


def _data_dir() -> Path:
    return Path(settings.STATE_DIR) / "metadata"
