"""The comparison of a branch's schema with another branch's."""

import json

import pytest

from console.branches.schema import MAX_LINE_LENGTH, MAX_LINES, read_diff
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page


def test_it_works(alice: Person, shop: Shop) -> None:
    shop.start()
    shop.sql("CREATE TABLE orders (id bigint)")
    url = f"{shop.url}/branches/{shop.dev_id}/schema"
    page = Page(alice.get(url))
    # What only the parent has is shown as missing here.
    assert "CREATE TABLE public.orders" in page.text
    assert "0 lines only in dev" in page.text
    page = Page(alice.get(f"{shop.url}/branches/{shop.main_id}/schema?base={shop.dev_id}"))
    assert "0 lines only in dev" in page.text
    shop.sql("DROP TABLE orders")
    assert "No differences" in Page(alice.get(url)).text


def test_a_failed_comparison_gives_the_reason_and_keeps_the_choice(
    carol: Person, still_shop: Shop
) -> None:
    url = f"{still_shop.url}/branches/{still_shop.dev_id}/schema"
    for query in ("database=nothing", "base=br-no-such-123456"):
        answer = carol.get(f"{url}?{query}")
        assert answer.status_code == 200
        page = Page(answer)
        assert 'role="alert"' in page.html
        assert page.fields["database"]


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 422, 423, 429, 500])
def test_a_server_that_does_not_compare_schemas(
    dave: Person, misbehaving: Misbehaving, status: int
) -> None:
    misbehaving.refuse(status, "no <b>such</b> thing")
    assert dave.get("/projects/p/branches/b/schema").status_code >= 400


def test_raw_words_of_postgres_are_behind_a_sentence(
    dave: Person, misbehaving: Misbehaving
) -> None:
    found = {
        "project": {"id": "p"},
        "branches": [{"id": "b"}, {"id": "c"}],
        "databases": [{"name": "d"}],
    }
    misbehaving.body = json.dumps(found).encode()
    raw = "connection to server failed: FATAL:  the database system is starting up\nagain"
    misbehaving.apart["/compare_schema"] = (503, json.dumps({"message": raw}).encode())
    page = Page(dave.get("/projects/p/branches/b/schema"))
    assert ": Postgres was starting or stopping. " in page.text
    assert f"Details {' '.join(raw.split())}" in page.text


def test_the_lines_of_a_diff() -> None:
    found = read_diff("--- a\n+++ b\n@@ -3,2 +3,3 @@\n same\n-gone\n+new\n+newer\n")
    assert [(line.kind, line.text) for line in found.lines] == [
        ("hunk", ""),
        ("same", "same"),
        ("removed", "gone"),
        ("added", "new"),
        ("added", "newer"),
    ]
    numbers = [(line.base_number, line.own_number) for line in found.lines[1:]]
    assert numbers == [(3, 3), (4, None), (None, 4), (None, 5)]
    assert (found.added, found.removed, found.left_out) == (2, 1, 0)


@pytest.mark.parametrize("character", "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_line_ends_at_a_line_feed_only(character: str) -> None:
    found = read_diff(f"@@ -1 +1 @@\n-a{character}b\n+a{character}-c\n")
    assert [line.text for line in found.lines[1:]] == [f"a{character}b", f"a{character}-c"]


@pytest.mark.parametrize("text", ["", "nonsense", "+", "@@", "--- a\n+++ b\n"])
def test_text_that_is_not_a_diff_has_no_lines(text: str) -> None:
    assert read_diff(text).lines == []


def test_a_long_diff_is_cut() -> None:
    found = read_diff("@@ -1 +1 @@\n" + "+x\n" * (MAX_LINES + 9))
    assert len(found.lines) == MAX_LINES
    assert found.left_out == 10
    assert found.added == MAX_LINES + 9


def test_the_characters_of_a_line_are_limited() -> None:
    (_, long, short) = read_diff(f"@@ -1 +1 @@\n+{'x' * 100_000}\n+y\n").lines
    assert (len(long.text), long.text[-2:], short.text) == (MAX_LINE_LENGTH, "x…", "y")
