"""The pages of tables: no page shows fewer rows or characters than there are without a word, and no
change is lost, doubled or wrongly reported."""

import csv
import html
import io
import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.console.conftest import Person, Shop
from tests.console.pages import Page
from tests.selection import first_of
from tests.support.project import Project

# The longest request line that gunicorn accepts by default.
LONGEST_ADDRESS = 4094 - len("GET  HTTP/1.1\r\n")


class Tables:
    """Carol's pages of tables on the main branch of a project of hers."""

    def __init__(self, person: Person, project: Project) -> None:
        self.person, self.project = person, project
        self.place = {
            "branch": project.branch_id,
            "database": "neondb",
            "role": "neondb_owner",
        }
        self.url = f"/projects/{project.id}/tables"

    def make(self, statement: str) -> None:
        """Run statements as the role that the pages use."""
        self.project.sql(f"SET ROLE neondb_owner; {statement}")

    def address(self, table: str, rest: str = "", **given: str) -> str:
        place = {**self.place, "table": json.dumps(["public", table]), **given}
        return f"{self.url}{rest}?{urlencode(place)}"

    def open(self, table: str, **given: str) -> Page:
        return self.get(self.address(table, **given))

    def get(self, address: str, status: int = 200) -> Page:
        assert len(address) <= LONGEST_ADDRESS
        answer = self.person.get(address)
        assert answer.status_code == status, answer.content.decode()
        return Page(answer)

    def follow(self, page: Page, words: str) -> Page:
        return self.get(link(page, words))

    def walk(self, table: str, **given: str) -> list[list[str]]:
        """Return the rows of all pages, read by Next."""
        page = self.open(table, **given)
        rows = cells(page)
        while link(page, "Next"):
            page = self.follow(page, "Next")
            rows += cells(page)
            assert len(rows) < 10_000
        return rows

    def export(self, table: str) -> list[list[str]]:
        answer = self.person.post(
            f"{self.url}/export", {**self.place, "table": json.dumps(["public", table])}
        )
        text = b"".join(answer.streaming_content).decode()
        return list(csv.reader(io.StringIO(text)))[1:]

    def send(self, address: str, page: Page, **changed: str) -> Any:
        """Send the form of the page. A browser leaves out boxes that are not ticked."""
        fields = {**page.fields, **changed}
        ticked = {
            name: value
            for name, value in fields.items()
            if value or not re.match("null|default", name)
        }
        return self.person.post(address, ticked)


def link(page: Page, words: str) -> str:
    found = re.findall(rf'<a[^>]* href="([^"]*)"[^>]*>\s*{words}', page.html)
    return html.unescape(found[0]) if found else ""


def cells(page: Page) -> list[list[str]]:
    return [row.split(" | ") for row in page.rows()]


@pytest.fixture(scope="module")
def tables(carol: Person, stack: Any) -> Tables:
    return Tables(carol, Shop.create(stack, carol.api, name="tables"))


class TestWholePages:
    def test_every_row_of_the_widest_table_is_on_a_page(self, tables: Tables) -> None:
        columns = ", ".join(f"c{n} text DEFAULT 'é'" for n in range(1590))
        tables.make(
            f"CREATE TABLE widest (id int PRIMARY KEY, {columns});"
            "INSERT INTO widest SELECT n FROM generate_series(1, 12) n"
        )
        assert [row[0] for row in tables.walk("widest")] == [str(n) for n in range(1, 13)]

    def test_large_values_are_cut_in_sql_and_opened_alone(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE large (id int PRIMARY KEY, note text, photo bytea, doc jsonb);"
            "INSERT INTO large SELECT n, repeat('é', 128000) || n, decode(repeat('ff', 500000),"
            " 'hex'), jsonb_build_object('a', repeat('x', 200000)) FROM generate_series(1, 51) n"
        )
        page = tables.open("large")
        assert len(cells(page)) == 50
        first = cells(page)[0]
        assert [cell[-6:] for cell in first[1:4]] == ["256 kB", "1.0 MB", "200 kB"]
        assert [row[0] for row in tables.walk("large")][-1] == "51"
        whole = tables.person.get(link(page, "Open all")).content.decode()
        assert whole == "é" * 128000 + "1"
        edited = tables.follow(page, "Edit")
        assert edited.html.count("Too long to be changed here") == 3
        # A browser sends nothing of a field that is disabled.
        for name in ("value1", "value2", "value3"):
            del edited.fields[name]
        answer = tables.send(link(page, "Edit"), edited, value0="1000", act="run")
        assert answer.status_code == 302
        kept = tables.project.sql("SELECT length(note), length(photo) FROM large WHERE id = 1000")
        assert kept == [(128001, 500000)]


class TestTablesWithoutAKey:
    """Rows are found by their place, which a row has within its own table only."""

    def test_every_row_of_a_table_with_heirs_is_on_a_page_and_in_the_export(
        self, tables: Tables
    ) -> None:
        tables.make(
            "CREATE TABLE bird (id int, name text);"
            "CREATE TABLE heron () INHERITS (bird); CREATE TABLE kite () INHERITS (bird);"
            "INSERT INTO bird SELECT n, 'bird' FROM generate_series(1, 70) n;"
            "INSERT INTO heron SELECT n, 'heron' FROM generate_series(71, 140) n;"
            "INSERT INTO kite SELECT n, 'kite' FROM generate_series(141, 4710) n"
        )
        every = {str(n) for n in range(1, 4711)}
        exported = tables.export("bird")
        assert len(exported) == 4710
        assert {row[0] for row in exported} == every
        tables.make("DELETE FROM bird WHERE id > 210")
        for given in ({}, {"sort": "name"}, {"sort": "name", "desc": "1"}):
            rows = tables.walk("bird", **given)
            assert sorted(int(row[0]) for row in rows) == list(range(1, 211))

    def test_a_key_does_not_hold_for_heirs(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE nest (id int PRIMARY KEY, tree text);"
            "CREATE TABLE high () INHERITS (nest);"
            "INSERT INTO nest SELECT n, 'oak' FROM generate_series(1, 60) n;"
            "INSERT INTO high SELECT n, 'ash' FROM generate_series(1, 60) n"
        )
        assert len(tables.walk("nest")) == len(tables.export("nest")) == 120
        # An edit would change both rows of an id.
        assert not link(tables.open("nest"), "Edit")
        assert link(tables.open("high"), "Edit") == ""

    def test_every_row_of_a_partitioned_table_is_on_a_page(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE seen (id int, at date) PARTITION BY LIST (at);"
            "CREATE TABLE seen_1 PARTITION OF seen FOR VALUES IN ('2026-01-01');"
            "CREATE TABLE seen_2 PARTITION OF seen DEFAULT PARTITION BY RANGE (id);"
            "CREATE TABLE seen_3 PARTITION OF seen_2 DEFAULT;"
            "INSERT INTO seen SELECT n, date '2026-01-01' + n % 3 FROM generate_series(1, 130) n"
        )
        every = list(range(1, 131))
        assert sorted(int(row[0]) for row in tables.walk("seen")) == every
        assert sorted(int(row[0]) for row in tables.walk("seen", sort="at")) == every
        assert sorted(int(row[0]) for row in tables.export("seen")) == every
        # Rows can be added.
        page = tables.follow(tables.open("seen"), "Add row")
        address = tables.address("seen", "/new-row")
        answer = tables.send(address, page, value0="500", value1="2030-01-01", act="run")
        assert answer.status_code == 302
        assert tables.project.sql("SELECT at::text FROM seen WHERE id = 500") == [("2030-01-01",)]

    def test_a_column_name_turns_no_words_beside_it(self, tables: Tables) -> None:
        """The override in the name reached as far as the type beside it."""
        name = "\u202etxet"
        tables.make(f'CREATE TABLE turning (id int PRIMARY KEY, "{name}" text)')
        tables.make("INSERT INTO turning VALUES (1, 'egg')")
        page = tables.open("turning", sort=name, column=name, op="eq", value="egg")
        assert "1 row matches" in page.text
        assert f"<bdi>{name}</bdi> ↑</a> <small>text</small>" in page.html
        assert f'<option value="{name}" selected>{name}</option>' in page.html
        assert f"<bdi>{name}</bdi> <small>text</small>" in tables.follow(page, "Edit").html
        assert tables.export("turning") == [["1", "egg"]]

    def test_a_view_says_that_rows_are_left_out(self, tables: Tables) -> None:
        tables.make("CREATE VIEW numbers AS SELECT n FROM generate_series(1, 60) n")
        page = tables.open("numbers")
        assert len(cells(page)) == 50
        assert "more than 50 rows" in page.text
        assert "Only the first 50 rows are shown" in page.text
        assert len(tables.export("numbers")) == 60
        assert "Only the first" not in tables.open("numbers", column="n", op="lt", value="9").text

    def test_the_estimate_counts_partitions_and_heirs(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE egg (id int PRIMARY KEY); CREATE TABLE blue () INHERITS (egg);"
            "INSERT INTO egg SELECT generate_series(1, 100);"
            "INSERT INTO blue SELECT generate_series(1, 900); ANALYZE egg, blue"
        )
        assert "about 1,000 rows (an estimate)" in tables.open("egg").text


class TestAddresses:
    def test_pages_sorted_by_long_texts(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE essay (id int PRIMARY KEY, text text); INSERT INTO essay SELECT n, "
            "nullif(repeat('é', 4800), repeat('é', 4800 * (n % 40))) || n % 50"
            " FROM generate_series(1, 180) n"
        )
        for given in ({}, {"desc": "1"}):
            rows = tables.walk("essay", sort="text", **given)
            assert sorted(int(row[0]) for row in rows) == list(range(1, 181))
        page = tables.follow(tables.open("essay", sort="text"), "Next")
        before = tables.follow(page, "Previous")
        assert cells(before) == cells(tables.open("essay", sort="text"))
        # The page begins after this row.
        tables.make("UPDATE essay SET text = 'other'")
        gone = tables.get(link(tables.open("essay", sort="id"), "Next"))
        assert len(cells(gone)) == 50

    def test_a_page_whose_first_row_is_gone_says_so(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE letter (id int PRIMARY KEY, text text);"
            "INSERT INTO letter SELECT n, repeat('é', 900) FROM generate_series(1, 60) n"
        )
        following = link(tables.open("letter", sort="text"), "Next")
        tables.make("DELETE FROM letter WHERE id = 50")
        page = tables.get(following)
        assert "changed or deleted meanwhile" in page.text
        assert "letter" in page.text
        assert len(cells(tables.follow(page, "First page"))) == 50

    @pytest.mark.parametrize("key", first_of(["é" * 700, '"' * 900, "\x01" * 600, "x" * 2000]))
    def test_a_row_with_a_long_key(self, tables: Tables, key: str) -> None:
        tables.make(
            "DROP TABLE IF EXISTS word; CREATE TABLE word (w text PRIMARY KEY, note text);"
            "INSERT INTO word SELECT 'w' || n FROM generate_series(100, 160) n"
        )
        with tables.project.compute() as connection:
            connection.execute("INSERT INTO word VALUES (%s), (%s || 'more')", (key, key))
        assert len(tables.walk("word")) == len(tables.export("word")) == 63
        page = tables.open("word", column="w", op="eq", value="x")
        page = tables.open("word", column="w", op="has", value=key[:100])
        address = link(page, "Edit")
        form = tables.get(address)
        answer = tables.send(address, form, value1="found", act="run")
        assert answer.status_code == 302, Page(answer).text
        with tables.project.compute() as connection:
            rows = connection.execute("SELECT w FROM word WHERE note = 'found'").fetchall()
        assert rows in ([(key,)], [(key + "more",)])

    def test_a_filter_of_a_wrong_type_keeps_the_page(self, tables: Tables) -> None:
        tables.make("CREATE TABLE owl (id int PRIMARY KEY); INSERT INTO owl VALUES (1)")
        page = tables.open("owl", column="id", op="eq", value="abc")
        assert "Invalid input syntax for type integer" in page.text
        # The list of tables, and the form with what was typed.
        assert link(page, "owl")
        assert page.fields["value"] == "abc"
        assert page.fields["op"] == "eq"


class TestNull:
    @pytest.fixture
    def form(self, tables: Tables) -> tuple[str, Page]:
        tables.make(
            "CREATE TABLE IF NOT EXISTS wren (id int PRIMARY KEY, note text, eggs int);"
            "TRUNCATE wren; INSERT INTO wren VALUES (1, NULL, 3)"
        )
        address = link(tables.open("wren"), "Edit")
        return address, tables.get(address)

    def test_a_value_that_is_typed_replaces_null(
        self, tables: Tables, form: tuple[str, Page]
    ) -> None:
        address, page = form
        assert page.fields["null1"] == "on"
        # Without scripts, the box stays ticked.
        review = Page(tables.send(address, page, value1="kept", act="review"))
        assert "SET \"note\" = 'kept'" in review.text
        assert tables.send(address, review, act="run").status_code == 302
        assert tables.project.sql("SELECT note FROM wren") == [("kept",)]

    def test_a_row_of_many_nulls_is_edited(self, tables: Tables) -> None:
        columns = ", ".join(f"c{n} int" for n in range(400))
        tables.make(
            f"DROP TABLE IF EXISTS heron; CREATE TABLE heron (id int PRIMARY KEY, {columns})"
        )
        tables.make("INSERT INTO heron VALUES (1)")
        address = link(tables.open("heron"), "Edit")
        review = Page(tables.send(address, tables.get(address), value5="7", act="review"))
        assert tables.send(address, review, act="run").status_code == 302
        assert tables.project.sql("SELECT c4, c5 FROM heron") == [(7, None)]

    def test_null_replaces_a_value_that_is_not_typed_over(
        self, tables: Tables, form: tuple[str, Page]
    ) -> None:
        address, page = form
        review = Page(tables.send(address, page, null2="on", act="review"))
        assert 'SET "eggs" = NULL' in review.text
        # Back to the values: the box is ticked there, and a value typed now counts again.
        back = Page(tables.send(address, review, act="edit"))
        assert back.fields["null2"] == "on"
        again = Page(tables.send(address, back, value2="7", act="review"))
        assert "SET \"eggs\" = '7'" in again.text

    def test_a_value_and_null_at_once_are_refused(
        self, tables: Tables, form: tuple[str, Page]
    ) -> None:
        address, page = form
        answer = tables.send(address, page, value2="8", null2="on", act="run")
        assert answer.status_code == 422
        assert "Both a value and NULL are given for eggs" in Page(answer).text
        assert Page(answer).fields["value2"] == "8"
        assert tables.project.sql("SELECT eggs FROM wren") == [(3,)]

    @pytest.mark.parametrize("line_break", ["\r\n", "\r", "\n"])
    def test_line_breaks_stay_as_they_were(
        self, tables: Tables, form: tuple[str, Page], line_break: str
    ) -> None:
        address, _ = form
        was = f"one{line_break}two{line_break}"
        with tables.project.compute() as connection:
            connection.execute("UPDATE wren SET note = %s", (was,))
        page = tables.get(address)
        answer = tables.send(address, page, value1="one\r\ntwo\r\n", act="review")
        assert "Nothing is changed yet" in Page(answer).text
        assert tables.send(address, page, value1="one\r\n2", act="run").status_code == 302
        with tables.project.compute() as connection:
            found = connection.execute("SELECT note FROM wren").fetchall()
        assert found == [(f"one{line_break}2",)]

    def test_it_is_so_in_a_new_row(self, tables: Tables, form: tuple[str, Page]) -> None:
        address = tables.address("wren", "/new-row")
        page = tables.get(address)
        given = {"value0": "2", "value1": "both", "null1": "on", "act": "run"}
        answer = tables.send(address, page, **given)
        assert "Both a value and NULL are given for note" in Page(answer).text
        review = Page(tables.send(address, page, value0="2", null1="on", act="review"))
        assert '("id", "note") VALUES (\'2\', NULL)' in review.text


class TestWhatHappened:
    """Triggers, rules and policies decide what a statement does, and with how many rows."""

    def add(self, tables: Tables, table: str, value: str) -> Page:
        address = tables.address(table, "/new-row")
        answer = tables.send(address, tables.get(address), value0=value, act="run")
        assert answer.status_code == 302
        return tables.get(answer.url)

    def edit(self, tables: Tables, table: str, *, act: str = "run", meanwhile: str = "") -> Page:
        address = link(tables.open(table), "Edit")
        form = tables.get(address)
        if meanwhile:
            tables.make(meanwhile)
        answer = tables.send(address, form, value1="new", act=act)
        return tables.get(answer.url) if answer.status_code == 302 else Page(answer)

    def test_a_row_that_a_trigger_puts_elsewhere(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE log (n int); CREATE TABLE log_2026 () INHERITS (log);"
            "CREATE FUNCTION route() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            "INSERT INTO log_2026 SELECT NEW.*; RETURN NULL; END$$;"
            "CREATE TRIGGER route BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION route()"
        )
        page = self.add(tables, "log", "7")
        assert "The statement ran without an error" in page.text
        assert "0 rows added in log" in page.text
        assert tables.project.sql("SELECT n FROM log_2026") == [(7,)]

    @pytest.mark.parametrize(
        ("act", "done", "how"),
        [
            ("run", "changed", "trigger"),
            ("run_deletion", "deleted", "trigger"),
            ("run", "changed", "rule"),
            ("run_deletion", "deleted", "rule"),
        ],
    )
    def test_a_change_that_is_not_made_is_not_called_one_of_somebody_else(
        self, tables: Tables, act: str, done: str, how: str
    ) -> None:
        what = "UPDATE" if act == "run" else "DELETE"
        ways = {
            "trigger": "CREATE OR REPLACE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN RETURN NULL; END'; CREATE TRIGGER t BEFORE {what} ON tern "
            "FOR EACH ROW EXECUTE FUNCTION never()",
            "rule": f"CREATE RULE r AS ON {what} TO tern DO INSTEAD NOTHING",
        }
        tables.make(
            "DROP TABLE IF EXISTS tern; CREATE TABLE tern (id int PRIMARY KEY, note text);"
            f"INSERT INTO tern VALUES (1, 'old'); {ways[how]}"
        )
        page = self.edit(tables, "tern", act=act)
        assert f"0 rows {done} in tern" in page.text
        assert "meanwhile" not in page.text
        assert tables.project.sql("SELECT note FROM tern") == [("old",)]

    def test_a_policy_that_lets_no_row_be_changed(self, tables: Tables) -> None:
        project = tables.project
        role = {"role": {"name": "reader"}}
        project.done(project.client.post(project.branch_path(rest="/roles"), role))
        project.sql("ALTER ROLE reader NOBYPASSRLS")
        tables.make(
            "CREATE TABLE loon (id int PRIMARY KEY, note text); INSERT INTO loon VALUES (1, 'old');"
            "ALTER TABLE loon ENABLE ROW LEVEL SECURITY; GRANT ALL ON loon TO reader;"
            "CREATE POLICY a ON loon FOR SELECT USING (true);"
            "CREATE POLICY b ON loon FOR UPDATE USING (false)"
        )
        as_reader = Tables(tables.person, project)
        as_reader.place["role"] = "reader"
        assert "0 rows changed in loon" in self.edit(as_reader, "loon").text

    def test_a_rule_that_reports_another_statement(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE swan (id int PRIMARY KEY, note text); CREATE TABLE swan_log (note text);"
            "INSERT INTO swan VALUES (1, 'old'); INSERT INTO swan_log VALUES ('old');"
            "CREATE RULE r AS ON UPDATE TO swan DO INSTEAD UPDATE swan_log SET note = NEW.note"
        )
        page = self.edit(tables, "swan")
        assert "The row of swan was changed" not in page.text
        assert "may have done something else" in page.text

    @pytest.mark.parametrize(
        ("act", "meanwhile"),
        [
            ("run", "DELETE FROM rook"),
            ("run", "UPDATE rook SET note = 'theirs'"),
            ("run_deletion", "DELETE FROM rook"),
        ],
    )
    def test_a_row_that_is_gone_or_changed(self, tables: Tables, act: str, meanwhile: str) -> None:
        tables.make(
            "DROP TABLE IF EXISTS rook; CREATE TABLE rook (id int PRIMARY KEY, note text);"
            "INSERT INTO rook VALUES (1, 'old')"
        )
        page = self.edit(tables, "rook", act=act, meanwhile=meanwhile)
        assert "changed or deleted meanwhile. Nothing was changed" in page.text
        kept = [("theirs",)] if "UPDATE" in meanwhile else []
        assert tables.project.sql("SELECT note FROM rook") == kept

    def test_it_works(self, tables: Tables) -> None:
        tables.make(
            "CREATE TABLE crow (id int PRIMARY KEY, note text); INSERT INTO crow VALUES (1, 'old')"
        )
        assert "The row of crow was changed." in self.edit(tables, "crow").text
        assert "A row was added to crow." in self.add(tables, "crow", "2").text
        assert "The row of crow was deleted." in self.edit(tables, "crow", act="run_deletion").text
        assert tables.project.sql("SELECT * FROM crow") == [(2, None)]

    def test_rows_of_a_materialized_view_are_not_changed(self, tables: Tables) -> None:
        tables.make(
            "CREATE MATERIALIZED VIEW totals AS SELECT n FROM generate_series(1, 60) n;"
            "CREATE UNIQUE INDEX ON totals (n)"
        )
        page = tables.open("totals")
        assert not link(page, "Edit")
        assert not link(page, "Add row")
        assert len(tables.walk("totals")) == 60
        assert "adds no rows" in tables.get(tables.address("totals", "/new-row"), 422).text


def test_opening_tables_starts_no_endpoint(alice: Person, shop: Shop) -> None:
    tables = Tables(alice, shop)
    tables.make("CREATE TABLE owl (id int PRIMARY KEY); INSERT INTO owl VALUES (4)")
    opened = [
        tables.address("owl"),
        tables.address("owl", "/row", key='["4"]'),
        tables.address("owl", "/value", key='["4"]', of="id"),
        tables.address("owl", "/new-row"),
    ]
    shop.suspend()
    for address in opened:
        answer = alice.get(address)
        assert "The endpoint is idle" in Page(answer).text
    assert shop.endpoint()["current_state"] == "idle"
    # The button asks for it, and leads to the page that was opened.
    answer = alice.post(opened[0])
    assert (answer.status_code, answer.url) == (302, opened[0])
    assert shop.endpoint()["current_state"] == "active"
    assert cells(tables.get(answer.url)) == [["4", "Edit row 1"]]
    # A session of looking is one event.
    for address in (*opened, opened[0]):
        assert alice.get(address).status_code == 200
    revealed = "/events?type=role.password_revealed"
    assert len(shop.client.get(shop.path + revealed)["events"]) == 1
    # A new password is another one.
    shop.done(shop.client.post(shop.branch_path(rest="/roles/neondb_owner/reset_password")))
    assert alice.get(opened[0]).status_code == 200
    assert len(shop.client.get(shop.path + revealed)["events"]) == 2
    shop.sql("DROP TABLE owl")
