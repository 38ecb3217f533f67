"""A masked branch has its parent's rows without the values that its rules mask."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.masking import functions
from controlplane.compute.masking.detecting import DETECTORS
from controlplane.operations.masked_data import AttestationInvalid, verify
from tests.support.project import Project
from tests.support.stack import ROOT

# No file of a masked branch may have this text.
SECRET = "the-real-person"
SOURCE = f"""
SET ROLE neondb_owner;
CREATE SCHEMA "Shop";
CREATE TABLE "Shop".person (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text UNIQUE NOT NULL, name varchar(20),
    phone text, born date, salary int, notes text, settings jsonb,
    shown text GENERATED ALWAYS AS (upper(email)) STORED
);
CREATE INDEX by_mail ON "Shop".person (lower(email));
CREATE TABLE orders (id int, email text REFERENCES "Shop".person (email) ON UPDATE CASCADE);
CREATE TABLE visit (at date, who text, address inet) PARTITION BY RANGE (at);
CREATE TABLE visit_2026 PARTITION OF visit FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE audit (what text);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO public.audit VALUES (old.email); RETURN new; END';
CREATE TRIGGER changed BEFORE UPDATE ON "Shop".person FOR EACH ROW EXECUTE FUNCTION audited();
ALTER TABLE "Shop".person ENABLE ROW LEVEL SECURITY;
ALTER TABLE "Shop".person FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON "Shop".person USING (id < 5) WITH CHECK (true);
INSERT INTO "Shop".person (email, name, phone, born, salary, notes, settings)
    SELECT '{SECRET}-' || n || '@corp.com', '{SECRET}', '+49 151 5550' || n, '1980-02-03', 5000 + n,
        repeat('{SECRET} ', 500) || n, '{{"who": "{SECRET}"}}' FROM generate_series(100, 299) n;
INSERT INTO orders SELECT n, '{SECRET}-' || n || '@corp.com' FROM generate_series(100, 299) n;
INSERT INTO visit SELECT '2026-02-03', '{SECRET}-' || n || '@corp.com', '9.9.9.9'
    FROM generate_series(100, 299) n;
CREATE MATERIALIZED VIEW mails AS SELECT email FROM orders;
CREATE VIEW seen AS SELECT ''::text AS email;
CREATE MATERIALIZED VIEW early AS SELECT email FROM seen;
CREATE MATERIALIZED VIEW late AS SELECT email FROM orders;
CREATE OR REPLACE VIEW seen AS SELECT email FROM late;
REFRESH MATERIALIZED VIEW early;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM mails;
ALTER TABLE orders ADD COLUMN dropped text DEFAULT '{SECRET}';
ALTER TABLE orders DROP COLUMN dropped;
RESET ROLE;
SELECT lo_from_bytea(0, '{SECRET}');
ANALYZE;
"""
RULES = {
    ("Shop", "person", "email"): "anon.fake_email()",
    ("Shop", "person", "name"): "anon.pseudo_first_name(email, 'salt')",
    ("Shop", "person", "phone"): "anon.random_phone('+999')",
    ("Shop", "person", "born"): "anon.dnoise(born, '400 days')",
    ("Shop", "person", "salary"): "anon.noise(salary, 0.5)",
    ("Shop", "person", "notes"): "anon.lorem_ipsum()",
    ("public", "orders", "email"): "anon.fake_email()",
    ("public", "visit", "who"): "anon.hash(who)",
    ("public", "visit", "address"): "anon.fake_ip()",
    ("public", "audit", "what"): "anon.null()",
}


def masking_rules(
    chosen: dict[tuple[str, str, str], str] = RULES, **values: str
) -> list[dict[str, str]]:
    rules = [
        {
            "database_name": "neondb",
            "schema_name": schema,
            "table_name": table,
            "column_name": column,
            "masking_function": function,
        }
        for (schema, table, column), function in chosen.items()
    ]
    for place, value in values.items():
        schema, table, column = place.split("__")
        where = {"database_name": "neondb", "schema_name": schema, "table_name": table}
        rules.append({**where, "column_name": column, "masking_value": value})
    return rules


def set_policy(project: Project, policy: str) -> None:
    project.client.patch(project.path, {"project": {"settings": {"masking_policy": policy}}})


def new_masked(project: Project, rules: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    body = {"masking_rules": rules, "start_anonymization": True, **fields}
    answer: dict[str, Any] = project.client.post(project.path + "/branch_anonymized", body)
    return answer


def test_a_masked_branch_has_no_value_that_its_rules_mask(project: Project, tmp_path: Path) -> None:
    project.sql(SOURCE)
    set_policy(project, "null")
    rules = masking_rules(Shop__person__settings='{"who": "somebody"}')
    create = {"branch": {"name": "masked"}, "endpoints": [{"type": "read_write"}]}
    made = new_masked(project, rules, branch_create=create)
    for operation in project.client.finish(made):
        assert operation["status"] == "finished", operation
    branch, endpoint = made["branch"], made["endpoints"][0]["id"]
    assert branch["masked_as"] == branch["id"]

    def sql(query: str) -> list[tuple[Any, ...]]:
        return project.sql(query, endpoint_id=endpoint)

    ((persons, mails, names, phones, days, raised, noted, who),) = sql("""
        SELECT count(*), count(DISTINCT email)
            FILTER (WHERE email ~ '^[a-z.]+[0-9a-f]+@example.com$'),
            count(*) FILTER (WHERE name ~ '^[A-Z][a-z]+$'), count(DISTINCT phone) FILTER (WHERE
            phone ~ '^[+]999[0-9]{9}$'), max(abs(born - '1980-02-03')),
            count(*) FILTER (WHERE salary <> 4900 + id), count(DISTINCT notes),
            min(settings->>'who')
        FROM "Shop".person""")
    assert (persons, mails, names, phones) == (200, 200, 200, 200)
    assert (0 < days <= 400, raised > 190, noted, who) == (True, True, 1, "somebody")
    # Values meet across tables, in what is computed of them, and in views.
    assert sql("""
        SELECT count(*) FROM "Shop".person p JOIN orders USING (email) JOIN mails USING (email)
        JOIN early USING (email) WHERE shown = upper(email)""") == [(200,)]
    assert sql("SELECT count(*) FROM audit") == [(0,)]
    assert sql(
        "SELECT count(DISTINCT who), max(length(who)), max(address::text) ~ '^2001:db8:' FROM visit"
    ) == [(200, 64, True)]
    assert sql("SELECT relforcerowsecurity FROM pg_class WHERE relname = 'person'") == [(True,)]
    assert sql("SELECT count(*) FROM pg_roles WHERE rolname ~ '^perch_masker'") == [(0,)]

    path = project.branch_path(branch["id"])
    status = project.client.get(path + "/anonymized_status")
    assert (status["state"], status["last_run"]["masked_columns"]) == ("anonymized", 11)
    attestation = project.client.get(path + "/attestation")["attestation"]
    neondb = next(one for one in attestation["databases"] if one["name"] == "neondb")
    assert neondb["removed"] == {"large objects": 1}
    person = next(one for one in neondb["tables"] if one["table"] == "person")
    reasons = {column["name"]: column["because"] for column in person["columns"]}
    assert reasons["id"] == "plain"
    assert (reasons["email"], reasons["shown"], person["rows"]) == ("rule", "computed", 200)
    verify(attestation, attestation["public_key"])
    with pytest.raises(AttestationInvalid, match="it was changed"):
        verify({**attestation, "policy": "keep"}, attestation["public_key"])
    assert SECRET not in json.dumps(attestation)

    # A child is masked as its parent is.
    child = project.new_branch(parent_id=branch["id"])["branch"]
    assert child["masked_as"] == branch["id"]
    of_child = project.client.get(project.branch_path(child["id"], "/attestation"))
    assert of_child["attestation"] == attestation

    project.suspend(endpoint)
    for place in project.stack.state_dir.rglob(f"{branch['id']}*"):
        for file in place.rglob("*"):
            if file.is_file():
                assert SECRET.encode() not in file.read_bytes(), file


def test_rules_may_be_set_before_there_is_data(project: Project) -> None:
    project.sql(
        "SET ROLE neondb_owner; CREATE TABLE person (id int PRIMARY KEY, name text, note text);"
        "INSERT INTO person SELECT n, 'Real ' || n, 'note ' || n FROM generate_series(1, 9) n"
    )
    create = {"endpoints": [{"type": "read_write"}]}
    made = new_masked(
        project,
        [],
        start_anonymization=False,
        branch_create=create,
        annotation_value={"pr": "7"},
    )
    assert made["operations"] == []
    branch_id, endpoint = made["branch"]["id"], made["endpoints"][0]["id"]
    assert (made["branch"]["current_state"], made["endpoints"][0]["current_state"]) == (
        "init",
        "idle",
    )
    path = project.branch_path(branch_id)
    assert project.client.get(path)["annotation"]["value"] == {"pr": "7"}
    assert project.client.get(path + "/anonymized_status")["state"] == "initialized"
    refused = refusal(project, "POST", project.endpoint_path(endpoint, "/start"))
    assert refused.endswith(f"/branches/{branch_id}/anonymize")
    assert project.client.call("GET", path + "/attestation").status_code == 404

    # What has no rule is named, and the branch stays without data.
    project.client.post(path + "/anonymize", {})
    (failed,) = project.client.finish(operations_of(project, branch_id))
    assert failed["error"] == (
        "no masking rule for neondb.public.person.name (text), neondb.public.person.note (text): "
        "add one (anon.keep() leaves a column as it is), or change the project's masking_policy "
        'from "refuse"'
    )
    status = project.client.get(path + "/anonymized_status")
    assert (status["state"], status["status_message"]) == ("error", failed["error"])
    assert "failed_at" in status

    rules = masking_rules({("public", "person", "name"): "anon.fake_last_name()"})
    rules += masking_rules({}, public__person__note="gone")
    changed = project.client.patch(path + "/masking_rules", {"masking_rules": rules})
    assert changed == project.client.get(path + "/masking_rules") == {"masking_rules": rules}
    assert project.client.post(path + "/anonymize", {})["state"] == "anonymizing"
    assert project.client.call("POST", path + "/anonymize", json={}).status_code == 423
    project.done(operations_of(project, branch_id))
    project.done(project.client.post(project.endpoint_path(endpoint, "/start")))
    notes = "SELECT count(*), min(note), max(note), max(name) ~ '^[A-Z][a-z]+$' FROM person"
    assert project.sql(notes, endpoint_id=endpoint) == [(9, "gone", "gone", True)]

    # A reset from the parent masks what is there now.
    names = "SELECT array_agg(name ORDER BY id) FROM person WHERE id < 10"
    before = project.sql(names, endpoint_id=endpoint)
    project.sql("INSERT INTO person VALUES (10, 'Real 10', 'more')")
    body = {"source_branch_id": project.branch_id}
    project.done(project.client.post(path + "/restore", body))
    assert project.sql(notes, endpoint_id=endpoint) == [(10, "gone", "gone", True)]
    assert project.sql(names, endpoint_id=endpoint) == before
    assert project.client.get(path + "/anonymized_status")["state"] == "anonymized"


def operations_of(project: Project, branch_id: str) -> dict[str, Any]:
    found = project.client.get(f"{project.path}/operations?branch_id={branch_id}&limit=1")
    return {"operations": found["operations"]}


def test_a_masked_branch_gets_no_data_that_is_not_masked(project: Project) -> None:
    made = new_masked(project, [])
    project.done(made)
    masked = made["branch"]["id"]
    other = project.new_branch_id()
    words = "the branch is anonymized, so it takes no data that is not"
    for branch_id in (masked, project.new_branch_id(parent_id=masked)):
        body = {"source_branch_id": other}
        path = project.branch_path(branch_id, "/restore")
        assert refusal(project, "POST", path, body).startswith(words)
    snapshot = project.done(project.client.post(project.branch_path(rest="/snapshot"), {}))
    path = f"{project.path}/snapshots/{snapshot['snapshot']['id']}/restore"
    over = {"target_branch_id": masked, "finalize_restore": True}
    assert refusal(project, "POST", path, over).startswith(words)
    # A copy of masked data is masked, whatever it is put in place of.
    project.done(
        project.client.post(project.branch_path(other, "/restore"), {"source_branch_id": masked})
    )
    assert project.branch(other)["masked_as"] == masked
    refused = new_masked_refused(project, [], branch_create={"branch": {"parent_id": masked}})
    assert refused.startswith("an anonymized branch is created from the present data")


def new_masked_refused(project: Project, rules: list[dict[str, str]], **fields: Any) -> str:
    body = {"masking_rules": rules, **fields}
    return refusal(project, "POST", project.path + "/branch_anonymized", body)


def refusal(project: Project, method: str, path: str, body: Any = None) -> str:
    """The message of the answer, which is 422."""
    answer = project.client.call(method, path, json=body)
    assert answer.status_code == 422, answer.text
    return str(answer.json()["message"])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("anon.nobody()", "anon.nobody is not offered by this server; it has anon.dnoise, "),
        ("now()); DROP TABLE x; --", "does not have the form anon.name(arguments)"),
        ("lower(name", "does not have the form"),
    ],
)
def test_an_unknown_function_is_refused_by_name(
    project: Project, function: str, words: str
) -> None:
    refused = new_masked_refused(project, masking_rules({("a", "b", "c"): function}))
    assert words in refused
    twice = masking_rules({("a", "b", "c"): "anon.null()"}) * 2
    assert new_masked_refused(project, twice) == "two rules for neondb.a.b.c"


@pytest.mark.parametrize(
    ("prepare", "chosen", "words"),
    [
        ("", {("public", "x", "y"): "anon.null()"}, "there is no column neondb.public.x.y"),
        ("CREATE TABLE t (v text)", {("public", "t", "v"): "anon.hash(w)"},
         'neondb.public.t.v: the table has no column "w"'),
        ("CREATE TABLE t (v text)", {("public", "t", "v"): "anon.partial(v)"},
         "the arguments of anon.partial have to be: column, number, text, number"),
        ("CREATE TABLE t (v text NOT NULL); INSERT INTO t VALUES ('secret')",
         {("public", "t", "v"): "anon.null()"},
         "neondb.public.t cannot be masked: NotNullViolation"),
        ("CREATE TABLE t (v int); INSERT INTO t VALUES (7)",
         {("public", "t", "v"): "anon.fake_city()"},
         "neondb.public.t cannot be masked: InvalidTextRepresentation"),
        ("CREATE TABLE t (v text); INSERT INTO t VALUES ('a'); CREATE FUNCTION f() RETURNS trigger"
         " LANGUAGE plpgsql AS 'BEGIN RETURN new; END'; CREATE TRIGGER tr BEFORE UPDATE ON t FOR"
         " EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER tr",
         {("public", "t", "v"): "anon.null()"}, '"tr" on neondb.public.t is a trigger or rule'),
        ("CREATE TABLE t (v text); INSERT INTO t SELECT n FROM generate_series(1, 99) n",
         {("public", "t", "v"): "anon.random_string(1)"},
         "masked values of neondb.public.t.v equal an original one"),
    ],
)  # fmt: skip
def test_what_cannot_be_masked_is_named_without_its_value(
    project: Project, prepare: str, chosen: dict[tuple[str, str, str], str], words: str
) -> None:
    project.sql(f"SET ROLE neondb_owner; {prepare}")
    made = new_masked(project, masking_rules(chosen))
    (failed,) = project.client.finish(made)
    assert words in failed["error"]
    assert "secret" not in failed["error"]
    assert project.branch(made["branch"]["id"])["current_state"] == "init"


def test_what_looks_like_personal_data_is_not_kept_without_a_rule(project: Project) -> None:
    set_policy(project, "keep")
    project.sql(
        "SET ROLE neondb_owner; CREATE TABLE t (id int, v text, number bigint);"
        "INSERT INTO t SELECT n, 'write to Ann@corp' || n || '.com', n FROM generate_series(1, 9) n"
    )
    (failed,) = project.client.finish(new_masked(project, []))
    assert failed["error"] == (
        "9 of 9 values of neondb.public.t.v look like mail addresses: add a masking rule for the "
        "column; anon.keep() leaves it as it is"
    )
    made = new_masked(project, masking_rules({("public", "t", "v"): "anon.keep()"}))
    project.done(made)
    path = project.branch_path(made["branch"]["id"], "/attestation")
    databases = project.client.get(path)["attestation"]["databases"]
    (table,) = next(one for one in databases if one["name"] == "neondb")["tables"]
    assert table["columns"][1]["found"] == {"mail addresses": 9}
    # The numbers of payment cards are found among numbers too.
    project.sql("UPDATE t SET v = '', number = 4111111111111111")
    (failed,) = project.client.finish(new_masked(project, []))
    assert failed["error"].startswith(
        "9 of 9 values of neondb.public.t.number look like numbers of payment cards"
    )


def test_the_proof_is_checked_by_a_command(project: Project, tmp_path: Path) -> None:
    made = project.done(new_masked(project, []))
    path = project.branch_path(made["branch"]["id"], "/attestation")
    proof = project.client.get(path)["attestation"]
    files = {"true": proof, "changed": {**proof, "rules": [{}]}, "none": {}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))

    def check(name: str, *options: str) -> str:
        command = [sys.executable, str(ROOT / "manage.py"), "verify_attestation", *options]
        place = ("--state-dir", str(project.stack.state_dir), str(tmp_path / name))
        done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    assert check("true").startswith(f"valid: the branch {proof['branch_id']} has the data of")
    assert check("true", "--public-key", proof["public_key"]).startswith("valid: ")
    assert "it was changed, or signed with another key" in check("changed")
    other = "A" * 43 + "="
    assert "it was changed, or signed with another key" in check("true", "--public-key", other)
    assert "has no attestation" in check("none")


@pytest.mark.thorough
def test_what_leads_elsewhere_is_left_out(project: Project) -> None:
    """Prepared transactions and user mappings, on a parent that is idle when it is copied."""
    settings = {"pg_settings": {"max_prepared_transactions": "5"}}
    project.change(settings=settings)
    project.start()
    project.sql(
        "SET ROLE neondb_owner; CREATE TABLE t (id int); CREATE EXTENSION postgres_fdw;"
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'db.example');"
        "CREATE USER MAPPING FOR PUBLIC SERVER elsewhere OPTIONS (password 'real')"
    )
    project.sql("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'half; way'")
    project.suspend()
    made = project.done(new_masked(project, []))
    path = project.branch_path(made["branch"]["id"], "/attestation")
    databases = project.client.get(path)["attestation"]["databases"]
    neondb = next(one for one in databases if one["name"] == "neondb")
    assert neondb["removed"] == {"prepared transactions": 1, "user mappings": 1}
    assert neondb["tables"][0]["rows"] == 0


SEEN = {
    "mail addresses": ("Ann <ann.b+c@mail.corp.de>", "x@example.com", "a@b", "ann@shop.test"),
    "phone numbers": ("call +49 (151) 555-0123", "+999123456789", "1 + 2 = 3", "+49 15"),
    "numbers of payment cards": ("no 4111-1111-1111-1111.", "4111111111111112", "1234", "41111"),
    "bank account numbers": (
        "to DE89 3704 0044 0532 0130 00",
        "DE88370400440532013000",
        "XX00",
        "A",
    ),
    "network addresses": ("from 8.8.4.4:53", "10.0.0.1", "1.2.3", "300.1.1.1", "v1.2.3.4.5"),
    "keys or tokens": ("AKIAABCDEFGHIJKLMNOP", "AKIA", "sk_live_x", "a.b.c"),
}


def test_what_is_found_and_what_is_not(project: Project) -> None:
    assert SEEN.keys() == DETECTORS.keys()
    for words, texts in SEEN.items():
        found = DETECTORS[words].finds("value")
        listed = ", ".join(f"($${text}$$)" for text in texts)
        query = f"SELECT value FROM (VALUES {listed}) AS v (value) WHERE {found}"
        assert [value for (value,) in project.sql(query)] == [texts[0]], words


def test_every_function_makes_values(project: Project) -> None:
    project.sql(
        "SET ROLE neondb_owner; CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, d date);"
        "INSERT INTO t SELECT n, 'v' || n || '@corp.com', n, '1990-01-01'"
        " FROM generate_series(1, 50) n"
    )
    given = {"hash": "v", "partial": "v, 1, '**', 1", "partial_email": "v", "noise": "n, 0.5"}
    given |= {"random_string": "9", "random_phone": "'+999'", "dnoise": "d, '9 days'"}
    given |= {name: "5, 99" for name in functions.FUNCTIONS if name.endswith("int_between")}
    given |= {"random_date_between": "'2000-01-01', '2000-12-31'"}
    columns = {"noise": "n", "random_int_between": "n", "random_bigint_between": "n", "dnoise": "d"}
    columns |= {"random_date": "d", "random_date_between": "d"}
    for name in functions.FUNCTIONS:
        column = columns.get(name, "v")
        rule = {"column_name": column, "masking_function": f"anon.{name}({given.get(name, '')})"}
        made = functions.mask_of(rule, {"v": "text", "n": "numeric", "d": "date"}).expression
        assert made is not None
        query = f"SELECT count({made}) FROM t".replace(functions.SECRET, "'secret'")
        assert project.sql(query) == [(50,)], name


def test_shuffled_values_are_those_of_other_rows(project: Project) -> None:
    project.sql(
        "SET ROLE neondb_owner; CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 50) n"
    )
    rules = masking_rules({("public", "t", "v"): "anon.shuffle()"})
    create = {"endpoints": [{"type": "read_write"}]}
    made = project.done(new_masked(project, rules, branch_create=create))
    query = "SELECT count(*), count(DISTINCT v), count(*) FILTER (WHERE v = 'v' || id) < 25 FROM t"
    endpoint = made["endpoints"][0]["id"]
    assert project.sql(query, endpoint_id=endpoint) == [(50, 50, True)]
