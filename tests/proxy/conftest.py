"""Two users: alice and bob have roles on the endpoint `ep-calm-river-000001`."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from psycopg import sql

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from tests.proxy.running_proxy import (
    REGION_HOST,
    Endpoint,
    MemoryDirectory,
    RunningProxy,
    running_proxy,
)
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory

# A busy machine may stop a process for longer than the 200 ms that an example may take by default.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")

ENDPOINT = "ep-calm-river-000001"
PASSWORDS = {"alice": "alice's secret", "bob": "bob's secret"}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PEM file of the authority that verifying clients trust."""
    directory = tmp_path_factory.mktemp("tls")
    load_or_create_authority(directory)
    return directory / "authority.pem"


@pytest.fixture(scope="session")
def identity(authority: Path) -> IssuingIdentity:
    return IssuingIdentity(load_or_create_authority(authority.parent), REGION_HOST)


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    with private_directory() as scratch:
        yield Programs(scratch)


@pytest.fixture(scope="session")
def postgres(programs: Programs) -> Iterator[BarePostgres]:
    """A Postgres that every test may use, but not stop."""
    with bare_postgres(programs) as cluster:
        cluster.start()
        for role, password in PASSWORDS.items():
            create_role(cluster, role, password)
        yield cluster


@pytest.fixture
def mortal_postgres(programs: Programs) -> Iterator[BarePostgres]:
    """A Postgres that a test may stop or kill. It is not started yet."""
    with bare_postgres(programs) as cluster:
        yield cluster


@pytest.fixture
def directory(postgres: BarePostgres) -> MemoryDirectory:
    directory = MemoryDirectory()
    directory.endpoints[ENDPOINT] = Endpoint(
        ComputeAddress(postgres.socket), verifiers=verifiers_of(postgres)
    )
    return directory


@pytest.fixture
def proxy(identity: IssuingIdentity, directory: MemoryDirectory) -> Iterator[RunningProxy]:
    with running_proxy(identity, directory) as proxy:
        yield proxy


def create_role(cluster: BarePostgres, role: str, password: str) -> None:
    with cluster.connect() as connection:
        verifier = connection.pgconn.encrypt_password(
            password.encode(), role.encode(), b"scram-sha-256"
        )
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(role), sql.Literal(verifier.decode())
            )
        )


def verifiers_of(cluster: BarePostgres) -> dict[str, str]:
    rows = cluster.execute("SELECT rolname, rolpassword FROM pg_authid WHERE rolcanlogin")
    return {role: verifier for role, verifier in rows if verifier is not None}
