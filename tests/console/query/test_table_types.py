"""The SQL of tables' pages with columns of every type of Postgres and the extensions: no page loses
a row, and no edit takes another value for the one that it replaces."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from console.query.sql_over_http import Query, Result
from console.query.table_description import (
    Description,
    Table,
    TableColumn,
    describe,
    read_description,
)
from console.query.table_pages import (
    PageOf,
    literal,
    page_query,
    read_row_name,
    row_query,
    unchanged_row_condition,
    update_sql,
)
from tests.support.project import Project

# Texts of which each type reads at least two as different values.
SAMPLES = (
    *("1", "2", "t", "f", "a", "b", "'x'", "0/1", "0/2", "(0,1)", "(0,2)", "1:2:", "1:9:"),
    *("2026-01-01", "2026-01-02", "12:00", "13:00", "1 day", "2 days", "10.0.0.1", "10.0.0.0/8"),
    *("08:00:2b:01:02:03", "08:00:2b:01:02:04", "08:00:2b:01:02:03:04:05", "\\x01", "\\x02"),
    *("0b2f7a54-53f5-4b0c-8b6d-0c5b9c1a0001", "0b2f7a54-53f5-4b0c-8b6d-0c5b9c1a0002", "1.0"),
    *("(1,1),(0,0)", "(2,0.5),(0,0)", "(1,1)", "(1,2)", "<(0,0),1>", "<(5,5),1>", "{1,1,0}"),
    *("{1,2,0}", "((0,0),(1,1))", "((0,0),(2,2))", "[(0,0),(1,1)]", "[(0,0),(2,2)]", "<a/>"),
    *("<b/>", '{"a": 1}', '{"a":1}', "$.a", "$.b", "int4", "text", "pg_class", "pg_type"),
    *("english", "simple", "numeric_in", "numeric_out", "10:20:", "10:20:15", "+(-)", "[1,2)"),
    *("[1,3)", "{[1,2)}", "{[1,3)}", "[2026-01-01,2026-01-02)", "[2026-01-01,2026-01-03)"),
    *("{[2026-01-01,2026-01-02)}", "{[2026-01-01,2026-01-03)}", "{}", "a=>1", "a=>2", "a.b"),
    *("978-0-393-04002-9", "978-0-306-40615-7", "0-393-04002-X", "0-306-40615-2", "[1]", "[2]"),
    *("9790260000438", "9790060115615", "977-1436-452-00-8", "1436-4522", "2049-3630", "{1:1}/3"),
    *("220356483481", "036000291452", "5 .. 6", "6", "pg_catalog", "=(int4,int4)", "abs(int4)"),
    *("<(int4,int4)", "sqrt(float8)", "C", "POSIX", "=postgres/postgres", "=r/postgres", "1 2"),
    *("{1:1,2:2}/2", "{1:5}/3", "(1, 2)", "lquery", "a & b", "a | b", "0", "10", "11"),
)
# Types whose values nobody may write.
NOT_WRITTEN = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "aclitem"}
NOT_WRITTEN |= {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "gtsvector", "ghstore"}
NOT_WRITTEN |= {"ltree_gist"}
EXTENSIONS = ("citext", "cube", "hstore", "isn", "ltree", "seg", "vector")
OWN_TYPES = """
CREATE DOMAIN own.zip AS varchar(5) CHECK (VALUE <> 'no');
CREATE DOMAIN own.zips AS own.zip[];
CREATE DOMAIN own.area AS box;
CREATE TYPE own.mood AS ENUM ('sad', 'glad');
CREATE DOMAIN own.temper AS own.mood;
CREATE TYPE own.pair AS (n int, t text);
CREATE TYPE own.papers AS (n int, j json);
CREATE DOMAIN own.couple AS own.pair;
CREATE TYPE own.span AS RANGE (subtype = float8, multirange_type_name = own.span_multirange);
"""
OWN = {
    "own.zip": ("12345", "1234"),
    "own.zips": ("{12345}", "{1,2}"),
    "own.area": ("(1,1),(0,0)", "(2,0.5),(0,0)"),
    "own.mood": ("sad", "glad"),
    "own.temper": ("sad", "glad"),
    "own.pair": ("(1,a)", "(1,)"),
    "own.papers": ('(1,"{""a"": 1}")', "(1,)"),
    "own.couple": ("(1,a)", "(,)"),
    "own.span": ("[1,2)", "[1,3)"),
    "own.span_multirange": ("{[1,2)}", "{[1,3)}"),
    "own.mood[]": ("{sad}", "{glad}"),
    "own.pair[]": ('{"(1,a)"}', '{"(1,b)"}'),
    "own.papers[]": ('{"(1,)"}', '{"(2,)"}'),
    "own.zip[]": ("{1}", "{2}"),
}


@pytest.fixture(scope="module")
def connection(still_shop: Project) -> Iterator[psycopg.Connection[Any]]:
    """A session in a database of its own, where no path leads to the extensions' operators."""
    still_shop.sql("CREATE DATABASE types")
    with still_shop.stack.compute(still_shop.endpoint_id, "types") as connection:
        connection.execute("CREATE SCHEMA own; CREATE SCHEMA extensions")
        for name in EXTENSIONS:
            connection.execute(f"CREATE EXTENSION {name} SCHEMA extensions")
        connection.execute(OWN_TYPES)
        yield connection
    still_shop.sql("DROP DATABASE types WITH (FORCE)")


def ask(connection: psycopg.Connection[Any], query: Query) -> list[list[str | None]]:
    """Run the query as the proxy does: parameters and values are texts."""
    cursor = psycopg.RawCursor(connection)
    cursor.execute(query.text.encode(), query.parameters or None)
    result = cursor.pgresult
    assert result is not None
    width = range(result.nfields)
    values = [[result.get_value(n, column) for column in width] for n in range(result.ntuples)]
    return [[None if one is None else one.decode() for one in row] for row in values]


def described(connection: psycopg.Connection[Any], name: str) -> Description:
    table = Table("public", name)
    found = read_description(table, Result("", None, [], ask(connection, describe(table))))
    assert found is not None
    return found


def samples(connection: psycopg.Connection[Any], kind: str) -> tuple[str, str] | None:
    """Return two values of the type, as Postgres writes them."""
    found: list[str] = []
    for sample in SAMPLES:
        written = sample if not kind.endswith("[]") else f"{{{quoted(sample)}}}"
        with contextlib.suppress(psycopg.Error):
            query = Query(f"SELECT pg_catalog.format('%s', {literal(written)}::{kind})")
            ((text,),) = ask(connection, query)
            if text and text not in found:
                found.append(text)
        if len(found) == 2:
            return found[0], found[1]
    return None


def quoted(sample: str) -> str:
    return '"' + sample.replace("\\", "\\\\").replace('"', '\\"') + '"'


def types(connection: psycopg.Connection[Any]) -> dict[str, tuple[str, str]]:
    """Return two values of each type of Postgres and the extensions, and of each array of them."""
    names = ask(
        connection,
        Query(
            "SELECT t.oid::regtype::text, t.typname FROM pg_type t LEFT JOIN pg_type e "
            "ON e.oid = t.typelem LEFT JOIN pg_class c ON c.oid = e.typrelid "
            "WHERE t.typnamespace IN ('pg_catalog'::regnamespace, 'extensions'::regnamespace) "
            "AND t.typtype IN ('b', 'r', 'm', 'e') AND t.typisdefined "
            "AND e.typtype IS DISTINCT FROM 'p' AND c.oid IS NULL"
        ),
    )
    found, missing = {}, []
    for kind, name in names:
        assert kind
        assert name
        if name in NOT_WRITTEN or name.removeprefix("_") in NOT_WRITTEN:
            continue
        if values := samples(connection, kind):
            found[kind] = values
        else:
            missing.append(kind)
    # Postgres may be built without libxml.
    missing = [kind for kind in missing if not kind.startswith("xml")]
    assert not missing, f"SAMPLES has no two values of {missing}"
    return found


def names_of(connection: psycopg.Connection[Any], table: Description, page: PageOf) -> list[str]:
    """Return the ids of the rows of all pages, two rows to a page."""
    found: list[str] = []
    while True:
        rows = ask(connection, page_query(table, page, rows=2, longest=100))
        found += [str(row[0]) for row in rows]
        if not rows:
            return found
        order = page.order(table)
        name = rows[-1][-3] or ""
        behind = read_row_name(name, len(order))
        if behind is None:
            ((*behind, _),) = ask(connection, row_query(table, order, order, name, longest=10**9))
        page = PageOf(page.sort, page.is_descending, page.only, behind)


@pytest.mark.thorough
def test_every_type(connection: psycopg.Connection[Any]) -> None:
    every = types(connection) | OWN
    assert len(every) > 170
    wrong = []
    for n, (kind, (one, other)) in enumerate(every.items()):
        name = f"t{n}"
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})")
        connection.execute(
            f"INSERT INTO {name} VALUES (1, {literal(one)}), (2, {literal(other)}), (3, NULL), "
            f"(4, {literal(one)}), (5, {literal(other)}), (6, NULL), (7, {literal(one)})"
        )
        try:
            check(connection, described(connection, name), one, other)
        except (psycopg.Error, AssertionError) as error:
            wrong.append(f"{kind}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)


def check(connection: psycopg.Connection[Any], table: Description, one: str, other: str) -> None:
    value = table.columns[1]
    assert table.is_editable
    whole = ask(connection, page_query(table, PageOf(), rows=9))
    shown = ask(connection, page_query(table, PageOf(), rows=9, longest=100))
    assert [row[1] for row in whole] == [row[1] for row in shown]
    if value.operators:
        for is_descending in (False, True):
            page = PageOf(value, is_descending)
            assert sorted(names_of(connection, table, page)) == list("1234567")
    else:
        # It is right that no sort is offered.
        with pytest.raises(psycopg.Error):
            connection.execute(f"SELECT FROM {table.table.quoted} ORDER BY v")
    # A value that is written anew is the one that is replaced; any other is not.
    before = whole[0][1]
    change(connection, table, value, before, other, is_made=True)
    change(connection, table, value, before, one, is_made=False)
    change(connection, table, value, None, one, is_made=False)
    change(connection, table, value, other, None, is_made=True)
    change(connection, table, value, other, one, is_made=False)
    change(connection, table, value, None, one, is_made=True)
    if value.operators:
        connection.execute(f"DELETE FROM {table.table.quoted} WHERE id NOT IN (1, 2)")
        connection.execute(
            f"ALTER TABLE {table.table.quoted} DROP CONSTRAINT {table.table.name}_pkey,"
            " ALTER v SET NOT NULL, ADD UNIQUE (v)"
        )
        keyed = described(connection, table.table.name)
        assert [column.name for column in keyed.key] == ["v"]
        assert sorted(names_of(connection, keyed, PageOf())) == ["1", "2"]
        where = unchanged_row_condition(keyed, [before], [])
        found = ask(connection, Query(f"SELECT id FROM {table.table.quoted} WHERE {where}"))
        assert found == [["1"]]


def change(
    connection: psycopg.Connection[Any],
    table: Description,
    column: TableColumn,
    before: str | None,
    after: str | None,
    *,
    is_made: bool,
) -> None:
    """Change the first row, if its value is `before`."""
    changed = [(column, before, after)]
    sql = update_sql(table, changed, unchanged_row_condition(table, ["1"], changed))
    assert connection.execute(sql.encode()).rowcount == is_made, sql


@pytest.mark.parametrize(
    ("kind", "was", "meanwhile"),
    [
        ("box", "(1,1),(0,0)", "(2,0.5),(0,0)"),
        ("circle", "<(0,0),1>", "<(5,5),1>"),
        ("numeric", "1.0", "1.00"),
        ("interval", "1 mon", "30 days"),
        ("float8", "0", "-0"),
        ("extensions.citext", "a", "A"),
        ("own.pair", "(,)", None),
        ("own.pair", None, "(,)"),
        ("tsvector", "", None),
        ("extensions.hstore", "", None),
        ("json", "1", " 1"),
        ("json[]", "{1}", "{2}"),
        ("own.papers", "(1,2)", "(1,3)"),
        ("inet", "10.0.0.1", "10.0.0.1/8"),
        ("char(3)", "a", "b"),
        ("timetz", "12:00+00", "13:00+01"),
        ("int4[]", "{1}", "[0:0]={1}"),
        ("numeric[]", "{1.0}", "{1.00}"),
        ("text", "", None),
    ],
)
def test_what_was_changed_meanwhile_to_an_equal_value_is_not_overwritten(
    connection: psycopg.Connection[Any], kind: str, was: str | None, meanwhile: str | None
) -> None:
    connection.execute(f"DROP TABLE IF EXISTS e; CREATE TABLE e (id int PRIMARY KEY, v {kind})")
    connection.execute(f"INSERT INTO e VALUES (1, {literal(was)})")
    table = described(connection, "e")
    ((_, before, *_),) = ask(connection, page_query(table, PageOf(), rows=9))
    connection.execute(f"UPDATE e SET v = {literal(meanwhile)}")
    change(connection, table, table.columns[1], before, None, is_made=False)
    # It is one of the present value.
    ((_, now, *_),) = ask(connection, page_query(table, PageOf(), rows=9))
    change(connection, table, table.columns[1], now, was, is_made=True)
