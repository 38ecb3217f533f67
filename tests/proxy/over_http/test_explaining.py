"""EXPLAIN over HTTP removes the options that only Neon's own Postgres has."""

import pytest

from controlplane.proxy.over_http.statements import without_neons_options
from tests.proxy.http_client import SqlClient
from tests.proxy.running_proxy import RunningProxy


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (
            "EXPLAIN (ANALYZE, VERBOSE, BUFFERS, FILECACHE, FORMAT JSON) SELECT 1",
            "EXPLAIN (ANALYZE, VERBOSE, BUFFERS, FORMAT JSON) SELECT 1",
        ),
        ("\n explain(filecache,buffers) SELECT 1", "\n explain(buffers) SELECT 1"),
        (
            "EXPLAIN (BUFFERS on, PREFETCH off, FileCache true) SELECT 1",
            "EXPLAIN (BUFFERS on) SELECT 1",
        ),
        ("EXPLAIN (FILECACHE) SELECT 1", "EXPLAIN SELECT 1"),
    ],
)
def test_the_options_are_replaced_by_spaces(sent: str, kept: str) -> None:
    found = without_neons_options(sent)
    assert "".join(found.split()) == "".join(kept.split())
    assert found.index("SELECT 1") == sent.index("SELECT 1"), (
        "the position of an error would be wrong"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "EXPLAIN (ANALYZE, FORMAT JSON) SELECT 1",
        "SELECT 'EXPLAIN (FILECACHE) SELECT 1'",
        "/* EXPLAIN (FILECACHE) */ SELECT 1",
        "EXPLAIN SELECT (filecache) FROM t",
        "EXPLAIN (SELECT a FROM t, filecache)",
        "EXPLAIN (SELECT a, filecache)",
        "EXPLAIN (FORMAT 'a, filecache, b') SELECT 1",
        "EXPLAIN (VERBOSE, /* , */ FILECACHE) SELECT 1",
        "EXPLAIN (a(b), filecache) SELECT 1",
        'EXPLAIN ("x", filecache) SELECT 1',
        "EXPLAIN (file\u00e4, filecache) SELECT 1",
        "EXPLAIN (FILECACHE",
        "EXPLAINS (FILECACHE) SELECT 1",
        "",
    ],
)
def test_other_statements_are_unchanged(statement: str) -> None:
    assert without_neons_options(statement) == statement


def test_a_plan_is_returned_alone_and_in_a_batch(proxy: RunningProxy) -> None:
    statement = "EXPLAIN (ANALYZE, VERBOSE, BUFFERS, FILECACHE, FORMAT JSON) SELECT 6 * 7"
    with SqlClient(proxy) as sql:
        ((plan,),) = sql.rows(statement)
        assert '"Node Type": "Result"' in plan
        answer = sql.post({"queries": [{"query": statement}, {"query": "SELECT 1"}]})
        assert [len(one["rows"]) for one in answer.json()["results"]] == [1, 1]
        wrong = f"{statement} FROM nowhere"
        assert int(sql.refusal(wrong)["position"]) == wrong.index("nowhere") + 1
