"""The private Postgres cluster for the metadata, used if no DATABASE_URL names another."""

import os
import pwd
import subprocess
from pathlib import Path

import psycopg
from django.conf import settings
from psycopg import sql

from controlplane import durable
from controlplane.compute.host.accounts import ENVIRONMENT, running_as, service_account, set_owner
from controlplane.compute.host.binaries import (
    PostgresUnusable,
    default_major,
    major_of,
    postgres_bin,
    postgres_version,
)
from controlplane.compute.host.filesystem import remove_tree, sync_tree
from controlplane.compute.processes.process import clear_stale_pid_file
from controlplane.process_accounts import KINDS, MAY_READ_METADATA, in_use

USER = DATABASE = "perch"
HBA_FILE, IDENT_FILE = "metadata-hba.conf", "metadata-ident.conf"


def metadata_socket_dir() -> Path:
    return Path(settings.SOCKET_DIR) / "metadata"


def create_metadata_cluster() -> None:
    """Make the cluster's directory if it does not exist, and write the files that say who may
    connect.

    Raises PostgresUnusable if another major version of Postgres made it.
    """
    data = data_dir()
    if (major := major_of(data)) != default_major():
        raise PostgresUnusable(
            f"{data} is of Postgres {major}, and the programs here are {postgres_version()}: "
            f"name those of Postgres {major} in PERCH_POSTGRES_BIN; docs/how-to/upgrade.md says "
            "how to change to another major version"
        )
    _make(metadata_socket_dir())
    # The processes' accounts are members of its group.
    metadata_socket_dir().chmod(0o710 if in_use() else 0o700)
    _write_access_files()
    if data.exists():
        clear_stale_pid_file(data, sockets=metadata_socket_dir())
        return
    staging = data.with_name(".metadata")
    remove_tree(staging)
    _make(staging)
    done = subprocess.run(
        [
            postgres_bin() / "initdb",
            *("--pgdata", staging, "--username", USER, "--encoding", "UTF8"),
            *("--auth", "peer", "--no-locale", "--no-sync", "--no-instructions"),
        ],
        capture_output=True,
        text=True,
        **running_as(service_account()),
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr.strip()}")
    sync_tree(staging)
    durable.rename(staging, data)


def metadata_command(*, mark: str) -> list[str]:
    """Return the command line that runs the cluster in the foreground, on its socket only.

    Its environment has nothing of ours but `mark`, NAME=value, by which the process can be found.
    """
    return [
        *("env", "-i", mark, *(f"{name}={value}" for name, value in ENVIRONMENT.items())),
        str(postgres_bin() / "postgres"),
        *("-D", str(data_dir())),
        *("-c", "listen_addresses="),
        *("-c", f"unix_socket_directories={metadata_socket_dir()}"),
        *("-c", f"unix_socket_permissions={'0770' if in_use() else '0700'}"),
        *("-c", f"hba_file={_state_file(HBA_FILE)}"),
        *("-c", f"ident_file={_state_file(IDENT_FILE)}"),
        *("-c", "max_connections=200"),
        # In /dev/shm, computes could leave no room.
        *("-c", "dynamic_shared_memory_type=mmap"),
    ]


def create_metadata_database() -> bool:
    """Make the database in the running cluster; False if the cluster does not answer yet."""
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
    """Why the database that `url` names cannot be reached; None if it can."""
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.OperationalError as error:
        return str(error)
    return None


def _write_access_files() -> None:
    """Write the files that admit only the account that we run as, and those of our processes.
    Postgres learns the account of a client from the kernel, so neither a compute's account nor the
    cluster's own can connect."""
    admitted = {pwd.getpwuid(os.geteuid()).pw_name}
    if in_use():
        admitted |= {k.account for k in KINDS.values() if MAY_READ_METADATA in k.groups}
    quoted = (name.replace('"', '""') for name in sorted(admitted))
    for name, text in (
        (HBA_FILE, f"local all {USER} peer map=perch\n"),
        (IDENT_FILE, "".join(f'perch "{one}" {USER}\n' for one in quoted)),
    ):
        path = _state_file(name)
        path.write_text(text)
        path.chmod(0o644)


def _make(directory: Path) -> None:
    if not directory.exists():
        directory.mkdir(mode=0o700)
        set_owner(directory, service_account())


def _state_file(name: str) -> Path:
    return Path(settings.STATE_DIR) / name


def data_dir() -> Path:
    return _state_file("metadata")
