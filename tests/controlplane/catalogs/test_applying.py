"""Roles and databases of the API are made in a compute, and never of what SQL has made there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.compute.catalog.applying import (
    GROUP,
    CatalogSpec,
    DatabaseSpec,
    Failures,
    RoleSpec,
    apply_catalog,
)
from controlplane.compute.catalog.reading import Wanted, read_catalog
from controlplane.compute.host.binaries import MAJOR
from controlplane.compute.processes.session import session
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from tests.support.bare_postgres import Programs, bare_postgres, private_directory

OWNER, APP = RoleSpec("owner", login=True), RoleSpec("app", login=True, password="x")
SHOP = DatabaseSpec("shop", "owner", None)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A server with the platform's role."""
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as cluster:
        cluster.start()
        (cluster.directory / MAJOR).write_text("18")
        cluster.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
        yield cluster.directory


def applied(sockets: Path) -> Failures:
    return apply_catalog(sockets, CatalogSpec([OWNER, APP], [SHOP]), [OWNER, APP, SHOP])


def test_what_was_made_before_a_crash_is_taken_over(sockets: Path) -> None:
    for _ in range(2):
        assert applied(sockets) == {}
    with session(sockets) as connection:
        found = read_catalog(connection, Wanted([], [], 9), Wanted([], [], 9))
    assert {role.name: role.in_group for role in found.roles} == {"owner": True, "app": True}


def test_what_sql_has_made_gets_no_rights_of_the_api(sockets: Path) -> None:
    with session(sockets) as connection:
        connection.execute("CREATE ROLE app; CREATE ROLE mallory")
        connection.execute("CREATE DATABASE shop OWNER mallory")
    failures = applied(sockets)
    assert failures.keys() == {APP, SHOP}
    assert all("SQL has made a" in one.words and one.is_final for one in failures.values())
    with session(sockets) as connection:
        is_member = connection.execute("SELECT pg_has_role('app', %s, 'MEMBER')", [GROUP])
        assert is_member.fetchone() == (False,)
        connection.execute("ALTER ROLE app RENAME TO theirs")
        connection.execute("ALTER DATABASE shop RENAME TO theirs")
    assert applied(sockets) == {}
