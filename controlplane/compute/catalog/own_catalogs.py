"""Compares the rows that Postgres itself has in its catalogs, such as its functions, casts,
languages and system views, with those of a fresh cluster.

No client may change any. But code that ran as a superuser while pg_upgrade did could have, to keep
what it had gained.
"""

from dataclasses import dataclass
from pathlib import Path

from controlplane.compute.processes.session import session, values_of

# The columns by which a row is Postgres's own (below 16384), or is about something that is: a
# trigger on a catalog has a number of its own.
KEYS = (
    "{oid,attrelid,indexrelid,indrelid,aggfnoid,rngtypid,mapcfg,objoid,tgrelid,ev_class,polrelid,"
    "conrelid,adrelid,inhrelid,inhparent,stxrelid}"
)
# Comments and statistics are not executed, and large objects may have any number. `rights` compares
# databases, and privileges with those in pg_init_privs. Passwords and limits are the platform's.
NOT_COMPARED = "{pg_description,pg_shdescription,pg_largeobject_metadata,pg_database}"
VARYING = (
    "^([a-z]+acl|rel(pages|tuples|all[a-z]+|filenode|frozenxid|minmxid)|indcheckxmin"
    "|rol(password|validuntil|connlimit))$"
)
# A query for each catalog. The schema `public` (2200) is the database's owner's. The triggers that
# keep system views read-only have another oid in each database of the template.
QUERIES = f"""
SELECT format('SELECT %L, sha256(textsend(string_agg(r, '','' ORDER BY r COLLATE "C")))'
    ' FROM (SELECT ROW(%s)::text FROM pg_catalog.%I WHERE (%s)%s) AS o(r)', relname,
    string_agg(attname, ', ' ORDER BY attnum) FILTER (WHERE attname !~ '{VARYING}'
        AND (relname, attname) <> ('pg_trigger', 'oid')), relname,
    string_agg(attname || ' BETWEEN 1 AND 16383', ' OR ') FILTER (WHERE attname = ANY ('{KEYS}')),
    CASE relname WHEN 'pg_namespace' THEN ' AND oid <> 2200' END)
FROM pg_class c JOIN pg_attribute ON attrelid = c.oid
WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND attnum > 0
    AND relname <> ALL ('{NOT_COMPARED}')
GROUP BY relname HAVING bool_or(attname = ANY ('{KEYS}'))
"""  # noqa: S608


@dataclass(frozen=True)
class OwnRows:
    """What a fresh cluster has in each of its databases."""

    # As the fresh cluster's catalogs give it: those to be compared could mislead it.
    query: bytes
    digests: frozenset[tuple[object, ...]]


def own_rows(sockets: Path) -> OwnRows:
    """Those of the fresh cluster that listens there. Raises psycopg.Error."""
    with session(sockets, client_encoding="SQL_ASCII") as fresh:
        queries = fresh.execute(QUERIES.encode()).fetchall()
        query = b" UNION ALL ".join(values_of(row, bytes)[0] for row in queries)
        return OwnRows(query, frozenset(fresh.execute(query)))


def changed_rows(sockets: Path, fresh: OwnRows) -> str | None:
    """Where the cluster that listens there has others in any database; None if it does not. Raises
    psycopg.Error."""
    with session(sockets) as connection:
        # New databases are copies of it.
        connection.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        names = connection.execute("SELECT datname FROM pg_database ORDER BY oid").fetchall()
        for (name,) in names:
            with session(sockets, str(name), client_encoding="SQL_ASCII") as inside:
                changed = fresh.digests ^ set(inside.execute(fresh.query))
            if changed:
                catalog = min(values_of(row, bytes, object)[0] for row in changed)
                return f'{catalog.decode(errors="replace")} in the database "{name}"'
        connection.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS false")
    return None
