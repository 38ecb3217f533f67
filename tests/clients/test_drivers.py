"""The newest drivers with the API's connection strings: unchanged, with the authority that
docs/how-to/drivers.md configures, and without it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from tests.clients import nodejs
from tests.selection import first_of
from tests.support.certificates import certificate
from tests.support.jdbc import ask_by_jdbc
from tests.support.place import Place

QUERY = "SELECT 'reached ' || current_user"
REACHED = "reached neondb_owner"
NODE_DRIVERS = ("pg", "postgres", "prisma")
DRIVERS = (*NODE_DRIVERS, "libpq", "jdbc")
# Any program. `prisma generate` needs no engine, but downloads one unless a path is given.
NO_ENGINE = {"PRISMA_SCHEMA_ENGINE_BINARY": "/bin/true", "CHECKPOINT_DISABLE": "1"}


@pytest.fixture(scope="module")
def generated(node: None) -> None:
    """Generate Prisma's client from `schema.prisma`."""
    command = ("node", nodejs.program("prisma"), "generate", "--schema", "schema.prisma")
    ran = nodejs.run(*command, environment=NO_ENGINE)
    assert ran.status == 0, ran.told + ran.output


@pytest.fixture(scope="module")
def authority(shop: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority as every user gets it."""
    url = shop.stack.api_url.replace("/api/v2", "/certificate-authority.pem")
    file = tmp_path_factory.mktemp("authority") / "authority.pem"
    file.write_bytes(shop.client.session.get(url, timeout=10).content)
    return file


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that has signed nothing here."""
    file = certificate(tmp_path_factory.mktemp("other"), "elsewhere")
    _key, begin, rest = file.read_text().partition("-----BEGIN CERTIFICATE-----")
    file.write_text(begin + rest)
    return file


def ask_by_node(driver: str, url: str, environment: dict[str, str], **options: Any) -> str:
    """Return the user as which the driver is connected, or the error."""
    ran = nodejs.run(
        "node", "drivers.mjs", driver, url, json.dumps(options), environment=environment
    )
    return ran.output.strip() or ran.told


def ask(driver: str, url: str) -> str:
    """Do the same for any driver, with only the connection string in its form."""
    if driver == "jdbc":
        return ask_by_jdbc(jdbc_form(url))
    if driver == "libpq":
        with psycopg.connect(url) as connection:
            return str(connection.execute(QUERY).fetchone()[0])  # type: ignore[index]
    return ask_by_node(driver, url, {})


def jdbc_form(url: str, **more: str) -> str:
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    place = f"{parameters.pop('host')}:{parameters.pop('port')}/{parameters.pop('dbname')}"
    return f"jdbc:postgresql://{place}?{urlencode({**parameters, **more})}"


def connection_uri(place: Place, *, pooled: bool = False) -> str:
    asked = {"database_name": place.database, "role_name": place.role, "pooled": pooled}
    return str(place.client.get(f"{place.path}/connection_uri", **asked)["uri"])


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_connection_uri_connects_unchanged(
    shop: Place, generated: None, driver: str, pooled: bool
) -> None:
    assert ask(driver, connection_uri(shop, pooled=pooled)) == REACHED


def test_libpq_is_that_of_postgres_18_and_encrypts(shop: Place) -> None:
    assert psycopg.pq.version() >= 180000
    with psycopg.connect(connection_uri(shop)) as connection:
        assert connection.pgconn.ssl_in_use


@pytest.mark.parametrize("driver", first_of(["pg", "prisma"]))
def test_sslmode_require_needs_the_parameter_that_the_console_adds(
    shop: Place, generated: None, driver: str
) -> None:
    """As node-postgres reads it. The console's tests check its whole text."""
    url = connection_uri(shop) + "&sslmode=require"
    assert "certificate" in ask_by_node(driver, url, {})
    assert ask_by_node(driver, f"{url}&uselibpqcompat=true", {}) == REACHED


@pytest.mark.parametrize("driver", first_of(["pg", "prisma"]))
def test_the_authority_of_the_environment_is_trusted(
    shop: Place, generated: None, authority: Path, driver: str
) -> None:
    trust = {"NODE_EXTRA_CA_CERTS": str(authority)}
    url = connection_uri(shop)
    assert ask_by_node(driver, f"{url}&sslmode=require", trust) == REACHED


@pytest.mark.parametrize("driver", first_of(NODE_DRIVERS))
def test_only_a_given_authority_is_trusted(
    shop: Place, generated: None, authority: Path, other_authority: Path, driver: str
) -> None:
    url = connection_uri(shop)
    for file, outcome in ((authority, REACHED), (other_authority, "certificate")):
        ssl = {"ca": file.read_text(), "rejectUnauthorized": True}
        assert outcome in ask_by_node(driver, url, {}, ssl=ssl)


@pytest.mark.parametrize("form", first_of(["libpq", "jdbc", "pg"], count=2))
def test_only_a_named_file_is_trusted(
    shop: Place, node: None, authority: Path, other_authority: Path, form: str
) -> None:
    forms: dict[str, Callable[[str], str]] = {
        "libpq": lambda url: ask("libpq", url),
        "jdbc": lambda url: ask_by_jdbc(jdbc_form(url)),
        "pg": lambda url: ask_by_node("pg", url, {}),
    }
    url = f"{connection_uri(shop)}&sslmode=verify-full&sslrootcert="
    assert forms[form](f"{url}{authority}") == REACHED
    try:
        refused = forms[form](f"{url}{other_authority}")
    except psycopg.OperationalError as error:
        refused = str(error)
    assert "certificate" in refused or "PKIX" in refused
