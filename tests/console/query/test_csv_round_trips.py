"""CSV of *Tables*: what is exported and imported again is what it was, and what would not be kept
whole is refused or said."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from console import memory
from console.memory import Budget
from console.query import tables
from tests.console.conftest import Person, Shop, signed_in
from tests.console.pages import Page
from tests.support.stack import Stack

# A value of every built-in type that tables can have. No two values of a type are alike in all.
VALUES = {
    "bool": "true", "bytea": r"\x00ff0a22", '"char"': "x", "name": 'a "name", with, commas',
    "int8": "-9223372036854775808", "int2": "-32768", "int2vector": "1 2", "int4": "-2147483648",
    "regproc": "now", "text": " it's \\ \"a\"\r\nb,\tc\n", "oid": "4294967295", "tid": "(1,2)",
    "xid": "3", "cid": "4", "oidvector": "5 6", "json": '{"a" :  1, "a": "é\\u0041"}',
    "xid8": "18446744073709551615", "point": "(0.1,1e-300)", "lseg": "[(0,1),(2,3)]",
    "path": "((0,1),(2,3))", "box": "(2,3),(0,1)", "polygon": "((0,0),(1,1),(0,1))",
    "line": "{1,-1,0.30000000000000004}", "float4": "0.1", "float8": "0.30000000000000004",
    "circle": "<(0,1),2>", "money": "-$1,234,567.89", "macaddr": "08:00:2b:01:02:03",
    "inet": "192.168.0.1/24", "cidr": "10.0.0.0/8", "macaddr8": "08:00:2b:01:02:03:04:05",
    "bpchar": "  padded  ", "char(5)": "ab", "varchar": "é\u2028\u0085\v😀",
    "date": "0044-03-15 BC", "interval": "-1 mons +2 days -00:00:00.000001",
    "varchar(3)": "ab ", "time": "24:00:00", "timestamp": "infinity",
    "timestamptz": "2026-03-29 02:30:00.123456+02:30",
    "timetz": "12:00:00-15:59", "bit(3)": "101", "varbit": "10", "numeric": "NaN",
    "numeric(40,20)": "12345678901234567890.12345678901234567890", "uuid": "a" * 32,
    "pg_lsn": "16/B374D848", "tsvector": "'a':1A 'it''s \\ x':2,3", "tsquery": "'a' & !'b c':*",
    "regclass": "pg_class", "regtype": "integer", "regrole": "neondb_owner",
    "jsonb": '{"a": null}', "txid_snapshot": "10:20:10,14", "pg_snapshot": "10:20:10,14",
    "int4range": "[1,10)", "numrange": "(,0.10]", "tsrange": "empty", "daterange": "[,)",
    "int4multirange": "{[1,2),[5,9)}", "jsonpath": '$."a"[*]',
    "mood": "it's, ok", "zip": "12345", "pair": '(1,"a ""b"", c")', "zip[]": '{12345,NULL,"NULL"}',
}  # fmt: skip
TEXTS = [
    None, "", " ", "NULL", r"\N", r"\.", '"', '""', ",", "\n", "\r", "\r\n", "\ufeffbom", "'", "\\",
    "a\nb", "-- x", "=1+1", "\u00a0", "\u2028", "\x0b", "\x1c", "\x7f", "\x85", "0", "é" * 3, None,
]  # fmt: skip


@pytest.fixture(scope="module")
def keeper(stack: Stack) -> Iterator[tuple[Person, Shop]]:
    person = signed_in(stack.client())
    shop = Shop.create(stack, person.api, name="csv")
    shop.sql(
        "CREATE TYPE mood AS ENUM ('it''s, ok', ''); CREATE DOMAIN zip AS varchar(5);"
        "CREATE TYPE pair AS (a int, b text)"
    )
    yield person, shop
    person.api.delete(shop.path)


class Place:
    def __init__(self, person: Person, shop: Shop, table: str) -> None:
        self.person, self.shop, self.table = person, shop, table
        self.chosen = {
            "branch": shop.branch_id,
            "database": "neondb",
            "role": "neondb_owner",
            "table": json.dumps(["public", table]),
        }

    def export(self, **given: str) -> bytes:
        answer = self.person.post(f"{self.shop.url}/tables/export", {**self.chosen, **given})
        assert answer.status_code == 200, Page(answer).text
        return b"".join(answer.streaming_content)

    def import_(self, data: bytes) -> Any:
        path = f"{self.shop.url}/tables/import?{urlencode(self.chosen)}"
        return self.person.post(path, {"file": SimpleUploadedFile("rows.csv", data)})

    def words_of_import(self, data: bytes) -> str:
        """Return what the console says of an import that was not refused."""
        answer = self.import_(data)
        assert answer.status_code == 302, Page(answer).text
        return Page(self.person.get(self.shop.url)).text

    def differing(self, other: str) -> list[Any]:
        a, b = (f"SELECT to_jsonb(x)::text, x::text FROM {name} x" for name in (self.table, other))
        return self.shop.sql(f"({a} EXCEPT ALL {b}) UNION ALL ({b} EXCEPT ALL {a})")


@pytest.fixture
def emptied(keeper: tuple[Person, Shop]) -> Iterator[Any]:
    """A function that makes a table with these columns and its copy without rows."""
    person, shop = keeper

    def make(columns: str, rows: str = "") -> tuple[Place, Place]:
        shop.sql(f"CREATE TABLE a ({columns}); CREATE TABLE b (LIKE a INCLUDING ALL); {rows}")
        return Place(person, shop, "a"), Place(person, shop, "b")

    yield make
    shop.sql("DROP TABLE IF EXISTS a, b; ALTER ROLE neondb_owner RESET ALL")


def insert(shop: Shop, rows: Sequence[Sequence[str | None]]) -> None:
    places = ", ".join(["%s"] * len(rows[0]))
    with shop.compute() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO a VALUES ({places})".encode(), rows)


def test_every_type_comes_back_as_it_was(emptied: Any) -> None:
    """Whatever the role's own settings are."""
    types = [*VALUES, *(f"{one}[]" for one in VALUES if not one.endswith("]"))]
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(types))
    whole, copy = emptied(f"n int PRIMARY KEY, {columns}")
    values = [VALUES.get(type_) or _array(VALUES[type_[:-2]], type_) for type_ in types]
    insert(whole.shop, [["1", *values], ["2", *[None] * len(types)]])
    for name, value in (
        ("datestyle", "'SQL, DMY'"), ("intervalstyle", "sql_standard"), ("array_nulls", "off"),
        ("extra_float_digits", "-3"), ("bytea_output", "escape"), ("timezone", "'Asia/Kolkata'"),
        ("standard_conforming_strings", "off"),
    ):  # fmt: skip
        whole.shop.sql(f"ALTER ROLE neondb_owner SET {name} = {value}")
    exported = whole.export()
    assert "2 rows imported into b." in copy.words_of_import(exported)
    whole.shop.sql("ALTER ROLE neondb_owner RESET ALL")
    assert whole.differing("b") == []
    assert copy.export() == exported


def _array(value: str, type_: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    # Only the elements of box[] are separated by semicolons.
    between = ";" if type_ == "box[]" else ","
    return "{" + between.join([f'"{escaped}"', "NULL", f'"{escaped}"']) + "}"


@pytest.mark.parametrize("width", [1, 2])
def test_every_text_comes_back_as_it_was(emptied: Any, width: int) -> None:
    """As NULL is not the empty text, and a last row is not a line break."""
    whole, copy = emptied(", ".join(["v text", "w text"][:width]))
    insert(whole.shop, [[text] * width for text in TEXTS])
    exported = whole.export()
    for sent in (exported, b"\xef\xbb\xbf" + exported):
        copy.shop.sql("TRUNCATE b")
        assert f"{len(TEXTS)} rows imported" in copy.words_of_import(sent)
        assert whole.differing("b") == []
    if width > 1:
        # An editor's blank line at the end.
        copy.words_of_import(exported + b"\r\n")


def test_copy_reads_what_was_exported(emptied: Any) -> None:
    whole, _ = emptied("v text")
    insert(whole.shop, [[text] for text in TEXTS if text != "\ufeffbom"])
    exported = whole.export()
    with (
        whole.shop.compute() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY b FROM STDIN (FORMAT csv, HEADER)") as into,
    ):
        into.write(exported)
    assert whole.differing("b") == []


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_what_copy_writes_is_imported(emptied: Any, line_end: bytes) -> None:
    whole, copy = emptied("v text")
    insert(whole.shop, [[text] for text in TEXTS if not text or not {*"\r\n"} & {*text}])
    with (
        whole.shop.compute() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY a TO STDOUT (FORMAT csv, HEADER)") as out,
    ):
        written = b"".join(out)
    copy.words_of_import(written.replace(b"\n", line_end))
    assert whole.differing("b") == []


def test_identity_columns_keep_their_values_and_generated_ones_are_named(emptied: Any) -> None:
    whole, copy = emptied(
        "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, price int,"
        " twice int GENERATED ALWAYS AS (price * 2) STORED"
    )
    whole.shop.sql("INSERT INTO a (price) SELECT n FROM generate_series(1, 9) n WHERE n <> 4")
    whole.shop.sql("DELETE FROM a WHERE id = 1")
    words = copy.words_of_import(whole.export())
    assert "7 rows imported into b. Postgres computed twice anew." in words
    assert whole.differing("b") == []


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("zip", "1234567"), ("varchar(5)", "1234567"), ("char(5)", "1234567"), ("bit(3)", "1010"),
        ("varbit(3)", "1010"), ("zip[]", "{1,1234567}"), ("varchar(2)[]", "{abc}"),
        ("numeric(4,2)", "100"), ("int2", "99999"), ("mood", "sad"), ("name", "é" * 32),
        ('"char"', "xy"), ("int", '""'), ("bool", "maybe"), ("date", "2026-02-30"),
    ],
)  # fmt: skip
def test_a_value_that_would_not_be_kept_whole_is_refused(
    emptied: Any, type_: str, value: str
) -> None:
    _, copy = emptied(f"n int, v {type_}")
    quoted = value if value == '""' else f'"{value}"'
    answer = copy.import_(f"n,v\n1,\n2,{quoted}\n".encode())
    assert answer.status_code == 422
    assert "line" in Page(answer).text.lower()
    assert copy.shop.sql("SELECT count(*) FROM b") == [(0,)]


def test_rows_that_a_trigger_places_elsewhere_are_not_counted_as_imported(emptied: Any) -> None:
    elsewhere, copy = emptied("n int")
    copy.shop.sql(
        "CREATE FUNCTION elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.n > 1 THEN INSERT INTO a VALUES (NEW.n); RETURN NULL; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER t BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION elsewhere()"
    )
    words = copy.words_of_import(b"n\n1\n2\n3\n")
    assert "b took 1 of the file's 3 rows: a trigger or a rule" in words
    assert elsewhere.shop.sql("SELECT count(*) FROM a") == [(2,)]
    copy.shop.sql("DROP FUNCTION elsewhere CASCADE")


def test_many_rows_and_columns_come_back(emptied: Any) -> None:
    """More values than a statement can have."""
    columns = ", ".join(f"c{n} int DEFAULT {n}" for n in range(300))
    whole, copy = emptied(f"n int PRIMARY KEY, {columns}")
    whole.shop.sql("INSERT INTO a SELECT n FROM generate_series(1, 1200) n")
    copy.words_of_import(whole.export())
    assert whole.differing("b") == []


def test_a_file_for_which_there_is_no_memory_changes_nothing(
    emptied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PATIENCE", 0)
    _, copy = emptied("n int PRIMARY KEY")
    data = b"n\r\n" + b"".join(b"%d\r\n" % n for n in range(5000))
    # Not even to receive it, and not to read it.
    for most, status, words in ((1 << 10, 503, "Too busy"), (1 << 20, 422, "Import it later")):
        monkeypatch.setattr(memory, "budget", Budget(most))
        answer = copy.import_(data)
        assert answer.status_code == status
        assert words in Page(answer).text
        # The answer itself is held until it is read.
        answer.close()
        assert memory.budget._left == most
    monkeypatch.setattr(memory, "budget", Budget())
    assert "5000 rows imported into b." in copy.words_of_import(data)


def test_an_export_holds_the_memory_of_one_page(
    emptied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PATIENCE", 0)
    monkeypatch.setattr(tables, "EXPORT_BATCH_SIZE", 100)
    budget = Budget(256 << 10)
    monkeypatch.setattr(memory, "budget", budget)
    whole, _ = emptied(
        "n int PRIMARY KEY, t text",
        "INSERT INTO a SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n",
    )
    exported = whole.export()
    assert exported.count(b"\n") == 3001
    assert not budget._held
