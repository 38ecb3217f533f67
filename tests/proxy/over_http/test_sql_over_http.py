"""`POST /sql` as clients other than the driver use it, over real sockets and with a real Postgres:
what requests may contain, and what the answers are. Tests of the driver itself are in
`tests/clients`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from controlplane.proxy.over_http.values import encoder
from tests.proxy.conftest import ENDPOINT
from tests.proxy.http_client import SqlClient, connection_string, headers
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy
from tests.support.bare_postgres import BarePostgres

pytestmark = pytest.mark.slow


@pytest.fixture
def sql(proxy: RunningProxy) -> Iterator[SqlClient]:
    with SqlClient(proxy) as client:
        yield client


def test_a_query_is_answered_with_fields_and_rows(sql: SqlClient) -> None:
    answer = sql.query("SELECT $1::int + 1 AS more, 'x' || $2 AS text, NULL AS nothing", 41, "y")
    assert answer["rows"] == [["42", "xy", None]]
    assert (answer["command"], answer["rowCount"], answer["rowAsArray"]) == ("SELECT", 1, True)
    assert answer["fields"][0] == {
        "name": "more",
        "dataTypeID": 23,
        "tableID": 0,
        "columnID": 0,
        "dataTypeSize": 4,
        "dataTypeModifier": -1,
        "format": "text",
    }
    assert [field["name"] for field in answer["fields"]] == ["more", "text", "nothing"]


def test_rows_are_objects_unless_arrays_are_requested(sql: SqlClient) -> None:
    assert sql.rows("SELECT 1 AS a, 'ä' AS b", array_mode="false") == [{"a": "1", "b": "ä"}]
    asked = {"query": "SELECT 1 AS a", "arrayMode": False}
    assert sql.post(asked).json()["rows"] == [{"a": "1"}]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("true", True),
        ("false", False),
        ("1::int2", 1),
        ("-2::int4", -2),
        ("3::int8", "3"),
        ("1.5::float8", 1.5),
        ("'Infinity'::float8", "Infinity"),
        ("'NaN'::float4", "NaN"),
        ("1.50::numeric", "1.50"),
        ("'a\"b'", 'a"b'),
        ("'{\"a\": [1, null]}'::jsonb", {"a": [1, None]}),
        ("'null'::json", None),
        ("ARRAY[1, NULL, 3]", [1, None, 3]),
        ("ARRAY[[true], [false]]", [[True], [False]]),
        ("'[0:1]={1,2}'::int[]", [1, 2]),
        ("'{}'::int[]", []),
        (
            "ARRAY['a\"b\\c', 'NULL', '', 'x,y', '{z}', NULL]",
            ['a"b\\c', "NULL", "", "x,y", "{z}", None],
        ),
        ("ARRAY[9007199254740993]", ["9007199254740993"]),
        ("ARRAY['{\"a\": 1}'::json]", [{"a": 1}]),
        ("'2026-01-02'::date", "2026-01-02"),
        ("'\\x00ff'::bytea", "\\x00ff"),
        ("NULL::int", None),
    ],
)
def test_without_raw_text_values_are_json(sql: SqlClient, expression: str, value: object) -> None:
    for array_mode in ("true", "false"):
        (row,) = sql.rows(
            f"SELECT {expression} AS v", raw_text_output="false", array_mode=array_mode
        )
        assert row == ([value] if array_mode == "true" else {"v": value})


def test_all_array_types_of_postgres_are_known(postgres: BarePostgres) -> None:
    # Except int2vector and oidvector, which use spaces, and box[], which uses semicolons.
    rows = postgres.execute(
        "SELECT oid::int FROM pg_type WHERE typcategory = 'A' AND typelem <> 0 AND typlen = -1"
        " AND oid NOT IN (22, 30) AND oid < 10000 AND typdelim = ',' AND typelem NOT IN"
        " (SELECT oid FROM pg_type WHERE typtype IN ('c', 'p'))"
    )
    unknown = {oid for (oid,) in rows if encoder(oid)("{NULL}") != "[null]"}
    assert unknown == set()


@pytest.mark.parametrize(
    ("type_name", "given", "text"),
    [
        ("int", 1, "1"),
        ("text", 1.5, "1.5"),
        ("bool", True, "true"),
        ("text", None, None),
        ("text", "NULL", "NULL"),
        ("jsonb", {"a": [1, None, "ä"]}, '{"a": [1, null, "ä"]}'),
        ("int[]", [1, None, 3], "{1,NULL,3}"),
        ("int[][]", [[1], [2]], "{{1},{2}}"),
        ("text[]", ['a"b\\c\n', "NULL", "", None, "x,y"], '{"a\\"b\\\\c\n","NULL","",NULL,"x,y"}'),
        ("jsonb[]", [{"a": 'b"'}], '{"{\\"a\\": \\"b\\\\\\"\\"}"}'),
        ("bool[]", [True, False], "{t,f}"),
    ],
)
def test_parameters_of_every_kind(
    sql: SqlClient, type_name: str, given: object, text: str | None
) -> None:
    assert sql.rows(f"SELECT $1::{type_name}::text", given) == [[text]]


@pytest.mark.parametrize(
    ("statement", "command", "count"),
    [
        ("INSERT INTO {} SELECT generate_series(1, 3)", "INSERT", 3),
        ("UPDATE {} SET n = n", "UPDATE", 3),
        ("DELETE FROM {} WHERE n > 1", "DELETE", 2),
        ("TRUNCATE {}", "TRUNCATE", None),
        ("", "", None),
    ],
)
def test_commands_and_counts(
    sql: SqlClient, postgres: BarePostgres, statement: str, command: str, count: int | None
) -> None:
    postgres.execute("CREATE TABLE IF NOT EXISTS counted (n int)")
    postgres.execute("GRANT ALL ON counted TO alice")
    answer = sql.query(statement.format("counted"))
    assert (answer["command"], answer["rowCount"]) == (command, count)
    assert answer["rows"] == answer["fields"] == []


def test_a_batch_is_one_transaction(sql: SqlClient) -> None:
    answer = sql.post(
        {
            "queries": [
                {"query": "CREATE TEMP TABLE t (n int)"},
                {"query": "INSERT INTO t VALUES ($1) RETURNING n", "params": [7]},
                {"query": "SELECT n, pg_current_xact_id_if_assigned() IS NOT NULL FROM t"},
            ]
        }
    ).json()
    assert [result["rows"] for result in answer["results"]] == [[], [["7"]], [["7", "t"]]]
    assert [result["command"] for result in answer["results"]] == ["CREATE", "INSERT", "SELECT"]
    assert sql.post({"queries": []}).json() == {"results": []}


RAISES = "DO $$BEGIN RAISE NOTICE 'at %', 'work' USING HINT = 'none'; RAISE WARNING 'ä'; END$$"
FAILS = "DO $$BEGIN RAISE NOTICE 'first'; PERFORM 1/0; END$$"


def noticed(answer: Any) -> list[tuple[str, str]]:
    return [(one["severity"], one["message"]) for one in answer.get("perch:notices", [])]


def test_notices_are_answered_if_they_are_asked_for(sql: SqlClient) -> None:
    assert "perch:notices" not in sql.query(RAISES)
    asked = {"Perch-Notices": "true"}
    sql.session.headers.update(asked)
    answer = sql.query(RAISES)
    assert noticed(answer) == [("NOTICE", "at work"), ("WARNING", "ä")]
    assert answer["perch:notices"][0]["hint"] == "none"
    several = sql.post({"queries": [{"query": one} for one in ("SELECT 1", RAISES, "SELECT 2")]})
    assert [len(noticed(one)) for one in several.json()["results"]] == [0, 2, 0]
    # The ones before an error come with it.
    assert noticed(sql.refusal(FAILS)) == [("NOTICE", "first")]
    many = "DO $$BEGIN FOR n IN 1..130 LOOP RAISE NOTICE '%', n; END LOOP; {}; END$$"
    for answer in (sql.query(many.format("NULL")), sql.refusal(many.format("PERFORM 1/0"))):
        assert (len(noticed(answer)), answer["perch:notices_left_out"]) == (100, 30)


def test_a_failed_batch_has_no_effect(sql: SqlClient, postgres: BarePostgres) -> None:
    postgres.execute("CREATE TABLE whole (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    postgres.execute("GRANT ALL ON whole TO alice")
    insert = {"query": "INSERT INTO whole VALUES (1)"}
    # The second violates a constraint that is checked at the end.
    for failing, code, statement in (({"query": "SELECT 1/0"}, "22012", 1), (insert, "23505", 2)):
        answer = sql.post({"queries": [insert, failing]})
        assert answer.status_code == 400
        assert (answer.json()["code"], answer.json()["perch:statement"]) == (code, statement)
        # Its transaction has ended before the answer is sent.
        assert postgres.execute("SELECT count(*) FROM pg_locks WHERE mode LIKE 'Row%'") == [(0,)]
    assert sql.rows("SELECT count(*) FROM whole") == [["0"]]


def test_a_statement_that_must_run_alone_is_refused_in_a_batch(sql: SqlClient) -> None:
    assert "perch:statement" not in sql.refusal("SELECT 1/0")


def test_the_transaction_mode_of_a_batch(sql: SqlClient) -> None:
    shows = ["transaction_isolation", "transaction_read_only", "transaction_deferrable"]
    modes = {
        "batch_isolation_level": "Serializable",
        "batch_read_only": "true",
        "batch_deferrable": "true",
    }
    asked = {"queries": [{"query": f"SHOW {name}"} for name in shows]}
    answer = sql.post(asked, **modes)
    shown = [result["rows"][0][0] for result in answer.json()["results"]]
    assert shown == ["serializable", "on", "on"]
    assert answer.headers["Neon-Batch-Isolation-Level"] == "Serializable"
    assert answer.headers["Neon-Batch-Read-Only"] == "true"
    refused = sql.post(asked, batch_isolation_level="Snapshot")
    assert (refused.status_code, refused.json()["message"]) == (400, "invalid isolation level")


@pytest.mark.parametrize("name", ["read_only", "deferrable"])
def test_a_mode_of_a_batch_is_true_or_false(sql: SqlClient, name: str) -> None:
    """Otherwise a batch that is meant to be read-only would write."""
    asked = {"queries": [{"query": f"SHOW transaction_{name}"}]}
    for value, shown in (("true", "on"), ("TRUE", "on"), ("False", "off")):
        answer = sql.post(asked, **{f"batch_{name}": value})
        assert answer.json()["results"][0]["rows"] == [[shown]], value
    for value in ("1", "on", "yes", "true, true", ""):
        refused = sql.post(asked, **{f"batch_{name}": value})
        header = f"neon-batch-{name.replace('_', '-')}"
        assert (refused.status_code, refused.json()["message"]) == (
            400,
            f"invalid value of {header}: use true or false",
        )


def test_an_error_has_all_its_fields(sql: SqlClient, postgres: BarePostgres) -> None:
    postgres.execute("CREATE TABLE people (name text CONSTRAINT nobody CHECK (name <> ''))")
    postgres.execute("GRANT ALL ON people TO alice")
    error = sql.refusal("INSERT INTO people VALUES ($1)", "")
    assert error["code"] == "23514"
    assert (error["schema"], error["table"], error["constraint"]) == ("public", "people", "nobody")
    assert error["severity"] == "ERROR"
    assert "violates check constraint" in error["message"]
    assert error["detail"].startswith("Failing row")
    assert {"file", "line", "routine"} <= {name for name, value in error.items() if value}
    assert sql.refusal("SELECT nowhere")["position"] == "8"
    error = sql.refusal("DO $$ BEGIN PERFORM nowhere; END $$")
    assert error["internalQuery"] == "SELECT nowhere"
    assert error["internalPosition"] == "8"
    assert "inline_code_block" in error["where"]


def test_several_statements_in_one_are_refused(sql: SqlClient) -> None:
    assert sql.refusal("SELECT 1; SELECT 2")["code"] == "42601"


@pytest.mark.parametrize("statement", ["COPY (SELECT 1) TO STDOUT", "COPY copied FROM STDIN"])
def test_copy_is_refused_with_the_reason(
    sql: SqlClient, postgres: BarePostgres, statement: str
) -> None:
    postgres.execute("CREATE TABLE IF NOT EXISTS copied (n int)")
    postgres.execute("GRANT ALL ON copied TO alice")
    error = sql.refusal(statement)
    assert error["code"] == "0A000"
    assert "COPY is not supported over HTTP" in error["message"]
    assert sql.rows("SELECT 1") == [["1"]]


@pytest.mark.parametrize(
    "given",
    [
        connection_string(password="wrong"),
        connection_string(role="nobody", password="wrong"),
        connection_string(host="ep-no-where-000001.localhost"),
    ],
)
def test_refusals_have_the_same_message(sql: SqlClient, given: str) -> None:
    error = sql.refusal("SELECT 1", connection=given)
    assert error["code"] == "28P01"
    assert error["message"].startswith("password authentication failed for user ")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mysql://a:b@ep-x.localhost/db", "incorrect scheme"),
        ("postgresql://alice:x@ep-x.localhost", "missing database name"),
        ("postgresql://alice:x@ep-x.localhost/", "missing database name"),
        ("postgresql://:x@ep-x.localhost/db", "missing username"),
        ("postgresql://alice@ep-x.localhost/db", "required password"),
        ("postgresql://alice:x@/db", "missing hostname"),
        ("postgresql://alice:x@[::1/db", "invalid connection string"),
        (
            "postgresql://alice:x@h/db, PostgreSQL://bob:secret@h/db",
            "invalid connection string: there are two",
        ),
        (
            "postgres://alice:x@h/db?application_name=x,postgres://bob:secret@h/db",
            "invalid connection string: there are two",
        ),
        ("postgresql://alice:x@ep-x.example.com/db", "invalid hostname"),
        ("postgresql://alice:x@localhost/db", "Endpoint ID is not specified"),
        ("postgresql://alice:%00@ep-x.localhost/db", "null character"),
        ("postgresql://alice:x@ep-x.localhost/db?options=endpoint%3Dep-y", "Inconsistent"),
    ],
)
def test_an_unusable_connection_string(sql: SqlClient, given: str, words: str) -> None:
    error = sql.refusal("SELECT 1", connection=given)
    assert words in error["message"]
    assert error["code"] == "28000"


def test_an_option_names_the_endpoint_if_the_host_does_not(sql: SqlClient) -> None:
    for host in ("127.0.0.1:5432", "localhost", "db.example.com"):
        given = connection_string(host=host, query=f"?options=endpoint%3D{ENDPOINT}")
        answer = sql.post({"query": "SELECT 1"}, connection=given)
        assert answer.json()["rows"] == [["1"]], answer.text


def test_an_unknown_database_is_refused_with_postgres_error(sql: SqlClient) -> None:
    error = sql.refusal("SELECT 1", connection=connection_string(database="nowhere"))
    assert error["code"] == "3D000"
    assert error["message"] == 'database "nowhere" does not exist'


def test_a_jwt_is_refused_with_the_reason(proxy: RunningProxy) -> None:
    answer = requests.post(
        f"http://127.0.0.1:{proxy.port}/sql",
        json={"query": "SELECT 1"},
        headers={**headers(), "Authorization": "Bearer x.y.z"},
        timeout=10,
    )
    assert answer.status_code == 400
    assert "JWT authorization is not offered by this server" in answer.json()["message"]


def test_browsers_may_send_requests_from_any_origin(proxy: RunningProxy) -> None:
    url = f"http://127.0.0.1:{proxy.port}/sql"
    allowed = requests.options(url, timeout=10)
    assert allowed.status_code == 200
    for name in headers(raw_text_output="true", array_mode="true", pool_opt_in="true"):
        assert name in allowed.headers["Access-Control-Allow-Headers"]
    for answer in (allowed, requests.post(url, timeout=10)):
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_a_disabled_endpoint(sql: SqlClient, directory: MemoryDirectory) -> None:
    directory.endpoints[ENDPOINT].disabled = True
    error = sql.refusal("SELECT 1")
    assert error["message"] == "Control plane request failed: endpoint is disabled"


def test_large_answers_and_answers_that_are_too_large(sql: SqlClient) -> None:
    rows = sql.rows("SELECT n, repeat('ä', 1000) FROM generate_series(1, 5000) n")
    assert len(rows) == 5000
    assert rows[4999] == ["5000", "ä" * 1000]
    ((value,),) = sql.rows("SELECT repeat('x', 30 * 1024 * 1024)")
    assert len(value) == 30 * 1024 * 1024
    for too_much in (
        "SELECT repeat('x', 1000000) FROM generate_series(1, 80)",
        "SELECT repeat('x', 70 * 1024 * 1024)",
    ):
        error = sql.refusal(too_much, status=507)
        assert error["message"] == "response is too large (max is 67108864 bytes)"
    assert sql.rows("SELECT 1") == [["1"]]


def test_large_requests_during_large_answers(sql: SqlClient) -> None:
    value = "x" * 200_000
    asked = {"queries": [{"query": "SELECT $1::text", "params": [value]}] * 20}
    results = sql.post(asked).json()["results"]
    assert [result["rows"] for result in results] == [[[value]]] * 20


def test_requests_without_json_or_with_too_many_statements(sql: SqlClient) -> None:
    for body in (b"", b"{", b"[1]", b"null", b'{"queries": 1}', b'{"query": 1}', b"NaN"):
        answer = sql.session.post(sql.url, data=body, headers=headers(), timeout=10)
        assert answer.status_code == 400
        assert answer.json()["message"].startswith("could not parse the HTTP request body: ")
    for body in (b"[" * 100_000, b'{"query": "", "params": [' + b"[" * 100_000):
        answer = sql.session.post(sql.url, data=body, headers=headers(), timeout=10)
        assert (answer.status_code, "could not parse" in answer.text) == (400, True)
    nested = json.dumps({"query": "SELECT $1", "params": [[[]]]}).replace(
        "[]", "[" * 900 + "]" * 900
    )
    assert sql.session.post(sql.url, data=nested, headers=headers(), timeout=10).status_code == 400
    many = json.dumps({"query": "SELECT 1", "params": [[0] * 1_000_000]})
    answer = sql.session.post(sql.url, data=many, headers=headers(), timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (413, "54000")
    assert sql.refusal("SELECT '\0'")["code"] == "22021"
    assert sql.refusal("SELECT $1", "\ud800")["code"] == "22021"
    assert sql.refusal("SELECT 1", *[1] * 70_000)["code"] == "54023"
    assert sql.refusal("SELECT $1::int", "x")["code"] == "22P02"
    assert sql.refusal("SELECT $1::int", 1, 2)["code"] == "08P01"
