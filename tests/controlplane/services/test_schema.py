"""GET …/branches/{branch_id}/schema and compare_schema."""

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.accounts import limit_command
from controlplane.compute.schemas.schema import MAX_SCHEMA_BYTES, _without_passwords
from controlplane.services import schemas
from controlplane.services.errors import Unprocessable
from controlplane.services.schemas import difference
from tests.support.project import Project, refusal

SHOP = """
CREATE SCHEMA sales;
CREATE TABLE sales.customer (id int PRIMARY KEY, name text NOT NULL, UNIQUE (name));
CREATE TABLE sales.purchase (
    id bigint GENERATED ALWAYS AS IDENTITY, customer int REFERENCES sales.customer,
    net numeric(10, 2), gross numeric GENERATED ALWAYS AS (net * 1.2) STORED);
CREATE FUNCTION sales.tax() RETURNS text LANGUAGE sql AS $$ SELECT '\\restrict me' $$;
"""


def schema(project: Project, branch_id: str | None = None, **query: Any) -> Any:
    query = {"db_name": "neondb", **query}
    return project.client.get(project.branch_path(branch_id, "/schema"), **query)


def compare(project: Project, branch_id: str, **query: Any) -> str:
    query = {"db_name": "neondb", **query}
    answer = project.client.get(project.branch_path(branch_id, "/compare_schema"), **query)
    assert set(answer) == {"diff"}
    return str(answer["diff"])


@pytest.fixture(scope="module")
def shop(standing: Project) -> Project:
    standing.sql(SHOP)
    return standing


def test_it_works(shop: Project) -> None:
    answer = schema(shop)
    assert set(answer) == {"sql"}
    assert "CREATE TABLE sales.customer (\n    id integer NOT NULL,\n" in answer["sql"]
    assert "SELECT '\\restrict me'" in answer["sql"]
    assert "\n\\restrict" not in answer["sql"]
    assert "\n\\unrestrict" not in answer["sql"]
    assert answer == schema(shop, format="sql")


def test_the_schema_as_json(shop: Project) -> None:
    (customer, purchase) = schema(shop, format="json")["json"]["tables"]
    assert customer == {
        "schema": "sales",
        "name": "customer",
        "columns": [
            {"name": "id", "type": "integer", "nullable": False, "generated": False},
            {"name": "name", "type": "text", "nullable": False, "generated": False},
        ],
        "constraints": [
            {"name": "customer_name_key", "type": "unique", "columns": ["name"]},
            {"name": "customer_pkey", "type": "primary_key", "columns": ["id"]},
        ],
    }
    assert purchase["columns"][2:] == [
        {"name": "net", "type": "numeric(10,2)", "nullable": True, "generated": False},
        {"name": "gross", "type": "numeric", "nullable": True, "generated": True},
    ]
    assert purchase["constraints"] == [
        {
            "name": "purchase_customer_fkey",
            "type": "foreign_key",
            "columns": ["customer"],
            "referenced_table": {"schema": "sales", "table": "customer", "columns": ["id"]},
        }
    ]


def test_an_idle_compute_stays_idle_and_a_branch_without_an_endpoint_works(
    project: Project,
) -> None:
    project.sql(SHOP)
    child_id = project.new_branch_id()
    project.suspend()
    before = project.operations()
    assert schema(project) == schema(project, child_id)
    assert "CREATE TABLE sales.customer" in schema(project)["sql"]
    assert project.endpoint()["current_state"] == "idle"
    assert not project.is_running()
    assert project.operations() == before
    for branch_id in (project.branch_id, child_id):
        assert not (project.stack.data_dir(branch_id) / "postmaster.pid").exists()
    sockets = {place.name for place in (project.stack.state_dir / "sockets").iterdir()}
    assert sockets.isdisjoint({project.endpoint_id, f"ep-r-{child_id}"})


@pytest.mark.thorough
def test_a_compute_that_is_starting_is_waited_for(project: Project) -> None:
    project.sql("CREATE TABLE t ()")
    with ThreadPoolExecutor(3) as threads:
        for _ in range(4):
            project.suspend()
            project.client.post(project.endpoint_path(rest="/start"))
            for answer in threads.map(lambda _: schema(project), range(12)):
                assert "CREATE TABLE public.t" in answer["sql"]


@pytest.mark.thorough
def test_differences(project: Project) -> None:
    project.sql("CREATE TABLE goods (id int)")
    child = project.new_branch(endpoint=True)
    child_id, endpoint_id = child["branch"]["id"], child["endpoints"][0]["id"]
    assert compare(project, child_id) == ""
    project.sql("ALTER TABLE goods ADD price numeric", endpoint_id=endpoint_id)
    diff = compare(project, child_id)
    assert diff.startswith("--- a/neondb\n+++ b/neondb\n@@ -")
    assert "\n-    id integer\n+    id integer,\n+    price numeric\n" in diff
    back = compare(project, project.branch_id, base_branch_id=child_id)
    assert "\n-    id integer,\n-    price numeric\n+    id integer\n" in back


@pytest.mark.parametrize("character", [*"\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n"])
def test_a_difference_with_other_line_ends_can_be_applied(tmp_path: Path, character: str) -> None:
    base, compared = (
        f"CREATE TABLE t ();\n\nCOMMENT ON TABLE t IS 'a{character}{word}{character}b';\n\n-- end\n"
        for word in ("old", "new")
    )
    diff = difference(base, compared, database_name="neondb")
    (tmp_path / "neondb").write_bytes(base.encode())
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=diff.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "neondb").read_bytes() == compared.encode()


@pytest.mark.parametrize(
    ("base", "compared"), [("", "a\n"), ("a", "a\n"), ("a\nb", "a\nc"), ("a\n", ""), ("-é", "é")]
)
def test_a_difference_at_the_end_can_be_applied(tmp_path: Path, base: str, compared: str) -> None:
    diff = difference(base, compared, database_name="neondb")
    assert diff.startswith("--- a/neondb\n+++ b/neondb\n@@ -")
    (tmp_path / "neondb").write_text(base)
    subprocess.run(["patch", "-p1"], input=diff.encode(), cwd=tmp_path, check=True)
    assert not compared or (tmp_path / "neondb").read_text() == compared
    assert difference(compared, compared, database_name="neondb") == ""


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("COMPARISON_TIMEOUT", 1),
        ("COMPARISON_MEMORY_BYTES", 20 << 20),
        ("MAX_COMPARISON_LINES", 9),
    ],
)
def test_a_comparison_of_schemas_that_differ_too_much_is_given_up(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(schemas, limit, value)
    lines = [f"{number}\n" for number in range(10 if limit == "MAX_COMPARISON_LINES" else 500_000)]
    base = "".join(lines)
    random.Random(1).shuffle(lines)
    began = time.monotonic()
    with pytest.raises(Unprocessable, match="differ too much to be compared"):
        difference(base, "".join(lines), database_name="neondb")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("verb", "query", "status", "words"),
    [
        ("schema", {}, 400, "db_name"),
        ("schema", {"db_name": "nowhere"}, 404, "database not found"),
        ("schema", {"db_name": "postgres"}, 404, "database not found"),
        ("schema", {"db_name": "neondb", "format": "xml"}, 400, "format"),
        ("compare_schema", {"db_name": "neondb"}, 422, "base_branch_id"),
        (
            "compare_schema",
            {"db_name": "neondb", "base_branch_id": "br-no-where-123456"},
            404,
            "branch not found",
        ),
    ],
)
def test_refusals(standing: Project, verb: str, query: Any, status: int, words: str) -> None:
    path = standing.branch_path(rest=f"/{verb}")
    answer = refusal(standing.client.call("GET", path, params=query))
    assert (answer[0], words in answer[1]) == (status, True), answer


@pytest.mark.thorough
def test_a_locked_table_causes_no_long_wait(project: Project) -> None:
    project.sql("CREATE TABLE held (id int)")
    with project.compute() as holder:
        holder.execute("BEGIN; LOCK TABLE held")
        path = project.branch_path(rest="/schema?db_name=neondb")
        status, words = refusal(project.client.call("GET", path))
        assert (status, "the schema cannot be read" in words, "holds a lock" in words) == (
            422,
            True,
            True,
        )
        assert str(project.stack.state_dir) not in words


@pytest.mark.thorough
def test_a_schema_that_is_too_long_is_refused(project: Project) -> None:
    project.sql("CREATE TABLE told (id int)")
    project.sql(
        "DO $$ BEGIN EXECUTE format('COMMENT ON TABLE told IS %L', repeat('x', 9 << 20)); END $$"
    )
    path = project.branch_path(rest="/schema?db_name=neondb")
    status, words = refusal(project.client.call("GET", path))
    assert (status, "it is longer than 8 MiB" in words) == (422, True)


@pytest.mark.thorough
def test_no_password_is_in_the_schema(fresh_project: Project) -> None:
    fresh_project.sql(
        "CREATE FOREIGN DATA WRAPPER far; CREATE SERVER away FOREIGN DATA WRAPPER far;"
        " CREATE USER MAPPING FOR neondb_owner SERVER away"
        " OPTIONS (\"user\" 'me', password 'it''s secret', sslpassword 'se\\cret')"
    )
    fresh_project.sql(
        "CREATE SUBSCRIPTION news CONNECTION 'host=/nowhere password=secret'"
        " PUBLICATION all_news WITH (connect = false)"
    )
    found = schema(fresh_project)["sql"]
    assert "CREATE USER MAPPING FOR neondb_owner SERVER away" in found
    assert "\"user\" '...'" in found
    assert "secret" not in found
    assert "cret'" not in found


MAPPING = """
CREATE SERVER away FOREIGN DATA WRAPPER far OPTIONS (
    host 'here',
    "my Password" 'secret'
);

CREATE USER MAPPING FOR neondb_owner SERVER away OPTIONS (
    password E'se\\\\cre''t',
    sslpassword 'it''s secret
);',
    "user" 'secret'
);

COMMENT ON COLUMN t.password IS 'kept ''too''';
"""


def test_no_value_of_a_user_mapping_and_no_password_of_a_server_is_shown() -> None:
    shown = _without_passwords(MAPPING)
    assert "secret" not in shown
    assert "se\\" not in shown
    assert shown.count("'...'") == 4
    assert "host 'here'" in shown
    assert shown.endswith("IS 'kept ''too''';\n")


@pytest.mark.parametrize(
    "kept",
    [
        "AS $_$\nCREATE USER MAPPING FOR a OPTIONS (\n    password 'x'\n);\n$_$;\n",
        "COMMENT ON TABLE t IS 'CREATE USER MAPPING FOR a OPTIONS (\n    password ''x''\n);';\n",
        "-- it's password 'x'\nCOMMENT ON TABLE \"it's\" IS E'password ''x''\\\\';\n",
        "CREATE TABLE t (\n    password text DEFAULT 'x'::text\n);\n",
    ],
)
def test_what_only_looks_like_an_option_is_kept(kept: str) -> None:
    assert _without_passwords(kept) == kept
    assert _without_passwords(kept + MAPPING) == kept + _without_passwords(MAPPING)


@pytest.mark.parametrize(
    "part",
    [
        *("\nCREATE USER MAPPING FOR a", "'", "''", '"', "E'", "E'\\'", "$a{}$ ", "a", "password "),
        *("$a", "--", "\n--\n", "\\restrict a\n", ";", "CREATE USER MAPPING 'x"),
    ],
)
def test_reading_a_hostile_schema_takes_time_by_its_length_only(part: str) -> None:
    dump = "".join(part.replace("{}", str(n)) for n in range(MAX_SCHEMA_BYTES // 4 // len(part)))
    began = time.process_time()
    _without_passwords(dump)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("output", "block", "status"), [("written", 4096, -signal.SIGXFSZ), ("/dev/null", 64 << 20, 1)]
)
def test_a_program_ends_that_needs_too_much_memory_or_writes_too_much(
    tmp_path: Path, output: str, block: int, status: int
) -> None:
    program = ["dd", "if=/dev/zero", f"of={output}", f"bs={block}", "count=16"]
    limits = limit_command(memory=32 << 20, file_size=16384)
    done = subprocess.run([*limits, *program], cwd=tmp_path, capture_output=True)
    assert done.returncode == status, done.stderr
    assert {path.stat().st_size for path in tmp_path.iterdir()} <= {16384}
