"""Checks whether a running compute's data is intact: for check_availability, and more thoroughly
for data that was restored only to check it."""

from pathlib import Path

import psycopg

from controlplane.compute.catalog.removal import roll_back_prepared
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.steps import step
from controlplane.compute.processes.session import is_utf8, name_of, session

# Seconds for the check of one index or table.
RELATION_TIMEOUT = 3600.0
INDEXES = (
    "SELECT i.indexrelid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " JOIN pg_am a ON a.oid = c.relam"
    " WHERE a.amname = 'btree' AND c.relkind = 'i' AND c.relpersistence = 'p'"
    " AND i.indisready AND i.indisvalid"
)
TABLES = (
    "SELECT oid FROM pg_class WHERE relkind IN ('r', 'm', 't') AND relpersistence = 'p'"
    " AND relam = (SELECT oid FROM pg_am WHERE amname = 'heap')"
)


class DataDamaged(Exception):
    """A database of the branch cannot be read; the message says which and why."""


def check_data(socket_dir: Path) -> None:
    """Read the catalog of every database and ask for checksum failures.

    Leaves out templates, databases whose DROP was interrupted, and those that accept no connections
    or whose name is not UTF-8, as their owners chose. Raises DataDamaged, psycopg.Error.
    """
    with step("checking_data") as part:
        names = _databases(socket_dir)
        part.detail["databases"] = len(names)
        for name in names:
            _check(socket_dir, name)


def check_structures(socket_dir: Path) -> None:
    """Check every B-tree index and every table of the databases that `check_data` reads with
    Postgres's amcheck; do nothing if this Postgres has no amcheck. This creates the extension, and
    rolls back prepared transactions, whose locks would keep it from tables, so the data must be a
    copy that nobody uses. Raises DataDamaged, psycopg.Error."""
    with session(socket_dir) as connection:
        roll_back_prepared(socket_dir, connection, "true")
        row = connection.execute(
            "SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"
        ).fetchone()
    if row is None:
        return
    for name in _databases(socket_dir):
        _check_structures(socket_dir, name)


def _check_structures(socket_dir: Path, name: str) -> None:
    with session(
        socket_dir, name, bound=RELATION_TIMEOUT, client_encoding="SQL_ASCII"
    ) as connection:
        # Neither the owner's extension, whose functions may have been replaced, nor that of
        # `extensions`, which needs the owner's role.
        connection.execute(
            "SELECT set_config(name, '$system', false) FROM pg_settings"
            " WHERE name = 'extension_control_path'"
        )
        connection.execute("DROP EXTENSION IF EXISTS amcheck CASCADE")
        connection.execute("CREATE EXTENSION amcheck SCHEMA pg_catalog")
        for (index,) in connection.execute(INDEXES).fetchall():
            try:
                connection.execute("SELECT bt_index_check(%s::oid)", [index])
            except psycopg.errors.IndexCorrupted as error:
                raise DataDamaged(f'database "{name}": the index {index} is damaged') from error
            report_progress()
        for (table,) in connection.execute(TABLES).fetchall():
            row = connection.execute(
                "SELECT count(*) FROM verify_heapam(%s::oid)", [table]
            ).fetchone()
            if row and row[0]:
                raise DataDamaged(f'database "{name}": the table {table} is damaged')
            report_progress()


def _databases(socket_dir: Path) -> list[str]:
    with session(socket_dir) as connection:
        rows = connection.execute(
            "SELECT namesend(datname) FROM pg_database"
            " WHERE datallowconn AND NOT datistemplate AND datconnlimit <> -2"
        ).fetchall()
    return [name for (sent,) in rows if is_utf8(name := name_of(sent))]


def _check(socket_dir: Path, name: str) -> None:
    # No conversion: not every encoding has one, and the queries return only numbers.
    with session(socket_dir, name, client_encoding="SQL_ASCII") as connection:
        # Reads pg_class and pg_attribute entirely, which verifies each page's checksum.
        connection.execute(
            "SELECT count(*), count(attname) FROM pg_class JOIN pg_attribute"
            " ON attrelid = pg_class.oid"
        )
        row = connection.execute(
            "SELECT coalesce(checksum_failures, 0) FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchone()
    if row and row[0]:
        raise DataDamaged(f'database "{name}": {row[0]} pages with a wrong checksum')
    report_progress()
