"""Checks whether a running compute's data is intact, for check_availability."""

from collections.abc import Sequence
from pathlib import Path

from controlplane.compute.patience import progressed
from controlplane.compute.session import is_utf8, name_of, session
from controlplane.compute.steps import step


class DataDamaged(Exception):
    """A database of the branch cannot be read; the message says which and why."""


def check_data(socket_dir: Path) -> None:
    """Read the catalog of every database and ask for checksum failures.

    Leaves out templates, databases whose DROP was interrupted, and those that accept no connections
    or whose name is not UTF-8, as their owners chose. Raises DataDamaged, psycopg.Error.
    """
    with step("checking_data") as part, session(socket_dir) as connection:
        rows = connection.execute(
            "SELECT namesend(datname) FROM pg_database"
            " WHERE datallowconn AND NOT datistemplate AND datconnlimit <> -2"
        ).fetchall()
        names = [name for (sent,) in rows if is_utf8(name := name_of(sent))]
        part.detail["databases"] = len(names)
        _check(socket_dir, names)


def _check(socket_dir: Path, names: Sequence[str]) -> None:
    for name in names:
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
        progressed()
