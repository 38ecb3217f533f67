"""What a pooled client leaves in its server connection does not reach the next client there."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.selection import first_of
from tests.support.place import Connection, Place
from tests.support.waiting import wait_for


def execute(place: Place, statement: str) -> None:
    with place.connect() as connection:
        connection.execute(statement.encode())


@pytest.fixture
def two(shop: Place) -> Iterator[tuple[Connection, Connection]]:
    """Two clients that use one server connection in turn."""
    with shop.connect(pooled=True) as one, shop.connect(pooled=True) as other:
        asked = "SELECT pg_backend_pid()"
        assert one.execute(asked).fetchone() == other.execute(asked).fetchone()
        yield one, other


LEFT = {
    "SET search_path TO nowhere": "SHOW search_path",
    "SET statement_timeout TO '7s'": "SHOW statement_timeout",
    "SET default_transaction_read_only TO on": "SHOW transaction_read_only",
    "SELECT set_config('search_path', 'nowhere', false)": "SHOW search_path",
    "SELECT set_config('app.tenant', '7', false)": (
        "SELECT coalesce(current_setting('app.tenant', true), '')"
    ),
    "DO $$ BEGIN PERFORM set_config('work_mem', '5MB', false); END $$": "SHOW work_mem",
    "SET ROLE app": "SELECT current_user",
    "CREATE TEMPORARY TABLE mine (a int)": "SELECT to_regclass('mine')",
    "SELECT pg_advisory_lock(7)": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1": "SELECT count(*) FROM pg_cursors",
}


@pytest.mark.parametrize("statement", LEFT)
def test_a_client_finds_nothing_of_the_one_before(
    shop: Place, two: tuple[Connection, Connection], statement: str
) -> None:
    one, other = two
    if statement == "SET ROLE app":
        with shop.stack.compute(shop.endpoint_id, shop.database) as platform:
            platform.execute("CREATE ROLE app")
            platform.execute(f'GRANT app TO "{shop.role}"'.encode())
    question = LEFT[statement].encode()
    before = other.execute(question).fetchone()
    one.execute(statement.encode())
    assert other.execute(question).fetchone() == before


def test_a_transaction_keeps_what_it_sets(two: tuple[Connection, Connection]) -> None:
    one, other = two
    with one.transaction():
        one.execute("SET LOCAL search_path TO nowhere")
        assert one.execute("SHOW search_path").fetchone() == ("nowhere",)
        one.execute("SET work_mem TO '5MB'")
        assert one.execute("SHOW work_mem").fetchone() == ("5MB",)
    assert other.execute("SHOW work_mem").fetchone() != ("5MB",)


def test_tracked_settings_stay_with_their_client(two: tuple[Connection, Connection]) -> None:
    one, other = two
    one.execute("SET timezone TO 'Asia/Kathmandu'")
    one.execute("SET application_name TO 'one'")
    for _ in range(3):
        assert other.execute("SHOW timezone").fetchone() != ("Asia/Kathmandu",)
        assert one.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
        assert one.execute("SHOW application_name").fetchone() == ("one",)
        assert other.execute("SHOW application_name").fetchone() != ("one",)


@pytest.mark.parametrize(
    "change",
    first_of(
        [
            "ALTER ROLE {role} SET timezone TO {value}",
            "ALTER ROLE {role} IN DATABASE {database} SET timezone TO {value}",
            "ALTER DATABASE {database} SET timezone TO {value}",
            "ALTER ROLE {role} SET search_path TO {value}",
            "ALTER ROLE {role} RESET ALL",
        ]
    ),
)
def test_new_clients_get_the_present_defaults(place: Place, change: str) -> None:
    name = "search_path" if "search_path" in change else "timezone"
    with place.connect(pooled=True) as staying:
        if "RESET" in change:
            execute(place, f"ALTER ROLE \"{place.role}\" SET timezone TO 'Asia/Tokyo'")
            wait_for(
                lambda: place.query("SHOW timezone", pooled=True) == ("Asia/Tokyo",), "the default"
            )
        before = place.query(f"SHOW {name}", pooled=True)
        names = {"role": f'"{place.role}"', "database": place.database, "value": "'Asia/Tokyo'"}
        execute(place, change.format(**names))
        own = place.query(f"SHOW {name}")
        assert own != before
        wait_for(lambda: place.query(f"SHOW {name}", pooled=True) == own, "the new default")
        # Nobody was disconnected for it.
        assert staying.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    [
        "LISTEN orders",
        "  listen orders",
        "/* of the shop; all */ -- of it\n LISTEN orders",
        "SELECT 1; LISTEN orders",
    ],
)
@pytest.mark.parametrize("parameters", [None, ()])
def test_listening_is_refused(shop: Place, statement: str, parameters: tuple[()] | None) -> None:
    if parameters is not None and ";" in statement:
        pytest.skip("only one statement can have parameters")
    with shop.connect(pooled=True) as client:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="LISTEN") as refused:
            client.execute(statement.encode(), parameters, prepare=False)
        assert "without -pooler" in str(refused.value.diag.message_hint)
        assert client.execute("SELECT 1").fetchone() == (1,)
        # These are no LISTEN.
        assert client.execute("SELECT 'x; LISTEN y'").fetchone() == ("x; LISTEN y",)
        assert client.execute("SELECT 1 AS listen").fetchone() == (1,)
        client.execute("NOTIFY orders")
        client.execute("UNLISTEN *")
