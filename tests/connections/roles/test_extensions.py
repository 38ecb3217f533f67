"""Extensions that a hosted Postgres offers can be created and used by the owner of a database."""

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.selection import first_of
from tests.support.place import Place

# For each extension, a query with one row that shows that it works for a role that is no superuser.
OFFERED = {
    "amcheck": "SELECT bt_index_check('things_pkey')",
    "autoinc": "CREATE SEQUENCE numbers; CREATE TRIGGER a BEFORE INSERT ON things"
    " FOR EACH ROW EXECUTE FUNCTION autoinc(id, numbers); SELECT 1",
    "bloom": "CREATE INDEX ON things USING bloom (id); SELECT 1",
    "btree_gin": "CREATE INDEX ON things USING gin (id); SELECT 1",
    "btree_gist": "CREATE INDEX ON things USING gist (id); SELECT 1",
    "citext": "SELECT 1 WHERE 'A'::citext = 'a'",
    "cube": "SELECT cube(1)",
    "dict_int": "SELECT ts_lexize('intdict', '12345678')",
    "dict_xsyn": "SELECT 1 FROM pg_ts_dict WHERE dictname = 'xsyn'",
    "earthdistance": "SELECT earth_distance(ll_to_earth(0, 0), ll_to_earth(1, 1))",
    "fuzzystrmatch": "SELECT soundex('perch')",
    "hstore": "SELECT 'a=>1'::hstore -> 'a'",
    "insert_username": "CREATE TRIGGER i BEFORE UPDATE ON things"
    " FOR EACH ROW EXECUTE FUNCTION insert_username(name); SELECT 1",
    "intagg": "SELECT int_array_aggregate(id) FROM things",
    "intarray": "SELECT sort('{2,1}'::int[])",
    "isn": "SELECT isbn('978-0-393-04002-9')",
    "lo": "SELECT NULL::lo, 1",
    "ltree": "SELECT 1 WHERE 'a.b'::ltree <@ 'a'",
    "moddatetime": "CREATE TRIGGER m BEFORE UPDATE ON things"
    " FOR EACH ROW EXECUTE FUNCTION moddatetime(changed); SELECT 1",
    "pg_buffercache": "SELECT 1 FROM pg_buffercache LIMIT 1",
    "pg_freespacemap": "SELECT count(*) FROM pg_freespace('things')",
    "pg_prewarm": "SELECT pg_prewarm('things')",
    "pg_stat_statements": "SELECT pg_stat_statements_reset()",
    "pg_trgm": "SELECT similarity('perch', 'porch')",
    "pg_visibility": "SELECT count(*) FROM pg_visibility_map('things')",
    "pgrowlocks": "SELECT count(*) FROM pgrowlocks('things')",
    "pgstattuple": "SELECT tuple_count FROM pgstattuple('things')",
    "seg": "SELECT '1 .. 2'::seg",
    "tablefunc": "SELECT * FROM normal_rand(1, 0, 1)",
    "tcn": "CREATE TRIGGER t AFTER INSERT ON things"
    " FOR EACH ROW EXECUTE FUNCTION triggered_change_notification(); SELECT 1",
    "tsm_system_rows": "SELECT count(*) FROM things TABLESAMPLE system_rows(1)",
    "tsm_system_time": "SELECT count(*) FROM things TABLESAMPLE system_time(100)",
    "unaccent": "SELECT unaccent('é')",
    "vector": "SELECT '[1,2]'::vector <-> '[2,3]'",
}
REFUSED = (
    "file_fdw",
    "pageinspect",
    "pg_logicalinspect",
    "pg_surgery",
    "pg_walinspect",
    "refint",
)


def connected(place: Place, *statements: str) -> Any:
    row = None
    with place.connect() as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            while cursor.nextset():
                pass
            row = cursor.fetchone() if cursor.description else None
    return row


@pytest.mark.thorough
@pytest.mark.parametrize(("extension", "use"), OFFERED.items(), ids=OFFERED.keys())
def test_an_owner_creates_and_uses(shop: Place, extension: str, use: str) -> None:
    connected(
        shop,
        "CREATE TABLE IF NOT EXISTS things (id int PRIMARY KEY, name text, changed timestamptz)",
        f"CREATE EXTENSION IF NOT EXISTS {extension} CASCADE",
    )
    try:
        assert connected(shop, use) is not None
    finally:
        connected(shop, f"DROP EXTENSION {extension} CASCADE", "DROP TABLE things")


@pytest.mark.parametrize("extension", first_of(REFUSED, count=4))
def test_an_extension_with_access_beyond_the_owners_rights_is_refused(
    shop: Place, extension: str
) -> None:
    with pytest.raises(errors.InsufficientPrivilege, match="permission denied to create"):
        connected(shop, f"CREATE EXTENSION {extension}")


def test_statements_are_counted_without_passwords(shop: Place) -> None:
    connected(
        shop,
        "CREATE EXTENSION IF NOT EXISTS pg_stat_statements",
        "CREATE ROLE secretive PASSWORD 'not to be kept'",
        "SELECT 'counted'::text, 41 + 1",
    )
    shop.new_role("made_meanwhile")
    asked = "SELECT string_agg(query, ' ') FROM pg_stat_statements(true)"
    seen = connected(shop, asked)[0]
    assert "SELECT $1::text, $2 + $3" in seen
    assert "PASSWORD" not in seen
    assert "rolpassword" not in seen


@pytest.mark.parametrize("extension", ["dblink", "postgres_fdw"])
def test_no_connection_from_a_compute_opens_a_socket_of_the_host(
    shop: Place, place: Place, extension: str
) -> None:
    """They connect with a password that their user gave and the other side requested."""
    connected(shop, f"CREATE EXTENSION IF NOT EXISTS {extension}")
    sockets = shop.stack.state_dir / "sockets"
    for other in (place.endpoint_id, "metadata", shop.endpoint_id):
        for role in ("perch_platform", "perch", "neondb_owner"):
            told = refusal(shop, extension, str(sockets / other), role)
            if other != shop.endpoint_id:
                assert "denied" in told
            elif role == "perch_platform":
                # Not even a session's start, which loads libraries and takes a connection.
                assert "Peer authentication failed" in told
            else:
                assert "delegated credentials required" in told or "not exist" in told


def refusal(place: Place, extension: str, host: str, role: str) -> str:
    if extension == "dblink":
        asked = f"SELECT dblink_connect('host={host} user={role} password=x dbname=postgres')"
    else:
        asked = (
            "CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw"
            f" OPTIONS (host '{host}', dbname 'postgres');"
            f"CREATE USER MAPPING FOR CURRENT_USER SERVER s OPTIONS (user '{role}', password 'x');"
            "CREATE FOREIGN TABLE f (a int) SERVER s;"
            "SELECT * FROM f"
        )
    with place.connect() as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(asked.encode())
    return str(refused.value)


def test_dblink_reaches_a_database_through_the_proxy(shop: Place) -> None:
    connected(shop, "CREATE EXTENSION IF NOT EXISTS dblink")
    parameters = shop.parameters(tls=False)
    wanted = ("host", "port", "user", "password", "dbname", "options")
    conninfo = " ".join(f"{name}={parameters[name]}" for name in wanted)
    with shop.connect() as connection:
        asked = "SELECT * FROM dblink(%s, 'SELECT 42') AS t (answer int)"
        assert connection.execute(asked, [conninfo]).fetchone() == (42,)
        # Without TLS, which libpq does not have there, as docs/reference/extensions.md says.
        with pytest.raises(psycopg.Error, match="SSL support is not compiled in"):
            connection.execute(asked, [f"{conninfo} sslmode=require"])


def test_postgres_fdw_reaches_a_table_through_the_proxy(shop: Place) -> None:
    connected(shop, "CREATE EXTENSION IF NOT EXISTS postgres_fdw")
    parameters = shop.parameters(tls=False)
    server = {name: parameters[name] for name in ("host", "port", "dbname", "options")}
    mapping = {name: parameters[name] for name in ("user", "password")}
    statements = (
        "CREATE TABLE near AS SELECT 42 AS answer",
        f"CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({options(server)})",
        f"CREATE USER MAPPING FOR CURRENT_USER SERVER itself OPTIONS ({options(mapping)})",
        "CREATE FOREIGN TABLE far (answer int) SERVER itself OPTIONS (table_name 'near')",
    )
    with shop.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())
        assert connection.execute("SELECT answer FROM far").fetchone() == (42,)


def options(named: dict[str, Any]) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in named.items())
