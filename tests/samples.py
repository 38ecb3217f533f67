"""`python -m tests.samples FILE.sql …`: loads databases that people share, such as Pagila and
Northwind, and checks that nothing of them is less or other than in a plain Postgres.

Each file is run by psql in a database of its own, which it must not create itself, and in a plain
Postgres too. Both are dumped and compared. Then every table and view is looked at in the console,
page by page, exported as CSV and compared with COPY; each table is imported into a copy of itself.
At last the schemas of a child and of a schema-only branch are compared with the parent's. It exits
with 1 if anything differs.
"""

import csv
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import psycopg
import requests
from psycopg import sql

from tests.benchmarks.console import sign_in
from tests.support.bare_postgres import Programs, bare_postgres, private_directory
from tests.support.project import Project
from tests.support.stack import free_port, new_state_dir, running_stack

# The longest table whose pages are all looked at; of a longer one so many pages are.
MOST_PAGES = 20
OWNER = "neondb_owner"
RELATIONS = """
SELECT nspname, relname, relkind = ANY ('{r,p}')
FROM pg_class JOIN pg_namespace namespace ON namespace.oid = relnamespace
WHERE relkind = ANY ('{r,p,v,m}') AND nspname <> 'information_schema' AND nspname !~ '^pg_'
    AND (relkind <> 'm' OR relispopulated)
ORDER BY 1, 2
"""
DIFFERENT = (
    "SELECT count(*) FROM (SELECT a::text FROM {} a EXCEPT ALL SELECT b::text FROM {} b) found"
)


class Console:
    """The console's tables of one database, for somebody who is signed in."""

    def __init__(self, project: Project, database: str) -> None:
        self._browser = requests.Session()
        self._url = f"{project.stack.console_url}{project.path}/tables"
        self._place = {"branch": project.branch_id, "database": database, "role": OWNER}
        sign_in(self._browser, project.stack.console_url, project.client.key)
        self._token = ""

    def _named(self, schema: str, table: str) -> dict[str, str]:
        return {**self._place, "table": json.dumps([schema, table], separators=(",", ":"))}

    def pages(self, schema: str, table: str) -> Iterator[str]:
        page = self._browser.get(self._url, params=self._named(schema, table), timeout=120)
        while True:
            assert page.ok, (table, page.status_code)
            self._token = page.text.partition('csrfmiddlewaretoken" value="')[2].partition('"')[0]
            yield page.text
            following = re.search(r'<a href="([^"]+)">Next</a>', page.text)
            if following is None:
                return
            page = self._browser.get(
                self._url + unescape(following[1]).partition("/tables")[2], timeout=120
            )

    def export(self, schema: str, table: str) -> bytes:
        form = {**self._named(schema, table), "csrfmiddlewaretoken": self._token}
        answer = self._browser.post(f"{self._url}/export", data=form, timeout=600)
        assert answer.ok, (table, answer.status_code)
        return answer.content

    def import_csv(self, schema: str, table: str, content: bytes) -> None:
        answer = self._browser.post(
            f"{self._url}/import",
            params=self._named(schema, table),
            data={"csrfmiddlewaretoken": self._token},
            files={"file": ("rows.csv", content, "text/csv")},
            timeout=600,
            allow_redirects=False,
        )
        assert answer.status_code == 302, (table, answer.status_code)


def main(files: list[Path]) -> int:
    differences: list[str] = []
    with (
        new_state_dir() as state_dir,
        running_stack(state_dir) as stack,
        private_directory() as plain,
    ):
        project = Project.create(stack, stack.client(), name="samples")
        programs, port = Programs(plain), free_port()
        with bare_postgres(programs, port=port) as bare:
            bare.start(listen_addresses="127.0.0.1")
            bare.execute(f"CREATE ROLE {OWNER} SUPERUSER LOGIN PASSWORD 'plain'")
            dump = programs.path("pg_dump")
            for file in files:
                theirs = (
                    f"host=127.0.0.1 port={port} user={OWNER} password=plain dbname={file.stem}"
                )
                bare.execute(f'CREATE DATABASE "{file.stem}" OWNER {OWNER}')
                found = check(project, file, theirs, dump)
                print(f"{file.stem}: {'; '.join(found) or 'no difference'}", flush=True)
                differences += found
        differences += compare_schemas(project, [file.stem for file in files])
    return 1 if differences else 0


def check(project: Project, file: Path, plain: str, dump: Path) -> list[str]:
    """Load the file, and return what differs from the plain Postgres."""
    body = {"database": {"name": file.stem, "owner_name": OWNER}}
    project.done(project.client.post(project.branch_path(rest="/databases"), body))
    asked = {"database_name": file.stem, "role_name": OWNER}
    uri = project.client.get(f"{project.path}/connection_uri", **asked)["uri"]
    ours = psycopg.conninfo.make_conninfo(uri, hostaddr="127.0.0.1")
    found = [] if load(file, ours) == load(file, plain) else ["other errors while it was loaded"]
    before = dumped(dump, ours)
    if before != dumped(dump, plain):
        found.append("another dump")
    console = Console(project, file.stem)
    with psycopg.connect(ours, autocommit=True) as session:
        for schema, table, is_table in session.execute(RELATIONS).fetchall():
            found += check_table(session, console, schema, table, is_table=is_table)
    if dumped(dump, ours) != before:
        found.append("another dump after all was looked at")
    return found


def check_table(
    session: psycopg.Connection, console: Console, schema: str, table: str, *, is_table: bool
) -> list[str]:
    found, name = [], sql.Identifier(schema, table)
    output = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv, HEADER)").format(name)
    with session.cursor().copy(output) as copied:
        wanted = rows_of(b"".join(bytes(part) for part in copied))
    shown = 0
    for number, page in enumerate(console.pages(schema, table), start=1):
        shown += page.partition("<tbody")[2].partition("</tbody>")[0].count("<tr")
        if number == MOST_PAGES or "Only the first" in page:
            break
    else:
        if shown != sum(wanted.values()) - 1:
            found.append(f"{table} shows {shown} rows of {sum(wanted.values()) - 1}")
    exported = console.export(schema, table)
    if rows_of(exported) != wanted:
        found.append(f"the export of {table} differs")
    if is_table and sum(wanted.values()) > 1:
        copy = sql.Identifier(schema, f"copy of {table}")
        like = "CREATE TABLE {} (LIKE {} INCLUDING GENERATED INCLUDING IDENTITY)"
        session.execute(sql.SQL(like).format(copy, name))
        console.import_csv(schema, f"copy of {table}", exported)
        less, more = (
            session.execute(sql.SQL(DIFFERENT).format(*pair)).fetchone()
            for pair in ((name, copy), (copy, name))
        )
        if (less, more) != ((0,), (0,)):
            found.append(f"the import of {table} differs")
        session.execute(sql.SQL("DROP TABLE {}").format(copy))
    return found


def rows_of(content: bytes) -> Counter[tuple[str, ...]]:
    return Counter(map(tuple, csv.reader(io.StringIO(content.decode(), newline=""))))


def load(file: Path, conninfo: str) -> list[str]:
    """Run the file by psql. Return its errors."""
    done = subprocess.run(
        ["psql", "-q", "-X", "-d", conninfo, "-f", file], capture_output=True, text=True
    )
    return [line for line in done.stderr.splitlines() if "ERROR" in line]


def dumped(program: Path, conninfo: str) -> str:
    done = subprocess.run(
        [program, "--no-owner", "--no-acl", "-d", conninfo],
        check=True,
        capture_output=True,
        text=True,
    )
    # It has a random key in each run.
    return re.sub(r"(?m)^\\(un)?restrict .*$", "", done.stdout)


def compare_schemas(project: Project, databases: list[str]) -> list[str]:
    found = []
    for source in ("parent-data", "schema-only"):
        made = project.new_branch(name=source, init_source=source, endpoint=True)["branch"]["id"]
        for name in databases:
            asked = {"db_name": name, "base_branch_id": project.branch_id}
            path = project.branch_path(made, "/compare_schema")
            if project.client.get(path, **asked)["diff"]:
                found.append(f"the schema of {name} differs in a branch of {source}")
    print("; ".join(found) or "schemas of branches: no difference")
    return found


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
