"""Which letters a project's databases know, and projects as earlier releases made them."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.place import Place
from tests.support.stack import Stack

# One row: of cases, of a comparison without regard to case, of a regular expression, of full text.
CASES = (
    "SELECT lower('ÄÖ'), 'Ärger' ILIKE 'ärger', 'é' ~ '^[[:lower:]]$',"
    " to_tsvector('german', 'ÄRZTE') = to_tsvector('german', 'ärzte')"
)
KNOWN, UNKNOWN = ("äö", True, True, True), ("ÄÖ", False, False, False)
# Texts are sorted by their bytes in either locale.
ORDER = "SELECT string_agg(t, '' ORDER BY t) FROM unnest('{é,Z,a,z}'::text[]) t"
# What the previous release writes, since it does not know the column.
AS_BEFORE = """
CREATE FUNCTION as_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.locale := 'C'; RETURN NEW; END $$;
CREATE TRIGGER as_before BEFORE INSERT ON controlplane_project
FOR EACH ROW EXECUTE FUNCTION as_before()
"""


@contextmanager
def projects_as_before(stack: Stack) -> Iterator[None]:
    """In the block, new projects are as an earlier release makes them."""
    with stack.database() as database:
        database.execute(AS_BEFORE)
    try:
        yield
    finally:
        with stack.database() as database:
            database.execute("DROP FUNCTION as_before CASCADE")


def new_database(place: Place, name: str) -> None:
    body = {"database": {"name": name, "owner_name": place.role}}
    place.done(place.client.post(place.branch_path(rest="/databases"), body))


def check_databases(place: Place, expected: tuple[object, ...]) -> None:
    """Check the databases of the project, of the API and of SQL, and of a schema-only branch."""
    assert place.query(CASES) == expected
    assert place.query(ORDER) == ("Zazé",)
    new_database(place, "made")
    with place.connect() as session:
        session.execute("CREATE DATABASE by_sql")
    for name in ("made", "by_sql"):
        assert place.query(CASES, dbname=name) == expected
    copy = place.new_branch(endpoint=True, init_source="schema-only")["endpoints"][0]["id"]
    place.start(copy)
    with place.connect(options=f"endpoint={copy}", tls=False) as session:
        assert session.execute(CASES).fetchone() == expected
        session.execute("CREATE DATABASE later")
    with place.connect(options=f"endpoint={copy}", tls=False, dbname="later") as session:
        assert session.execute(CASES).fetchone() == expected
