"""Reads the schema of a database from a running compute: as the statements that make it, by
Postgres's own pg_dump, or as its tables.

The server belongs to strangers: the program that talks to it runs under the branch's account, its
session is pinned as ours are, and what it says is read within bounds of size and time.
"""

import os
import re
import selectors
import subprocess
import time

from controlplane.compute.accounts import ENVIRONMENT, account_of, running_as
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.branch_data import branch_dir
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.door import port_of
from controlplane.compute.patience import heed_cancel
from controlplane.compute.session import pinned_options, session, socket_dir

# Bytes of the longest schema; thousands of tables.
LONGEST = 8 << 20
# Seconds that pg_dump may take in all, and may wait for one table's lock.
DUMP_BOUND, LOCK_WAIT = 30.0, 5.0
LONGEST_COMPLAINT = 2_000  # bytes
# Random at every call: the first of the commands that keep a dump's contents from being taken for
# psql's, behind the comments that it begins with.
RESTRICTION = re.compile(r"\A((?:--[^\n]*\n|\n)*)\\restrict (\S+)\n\n?")
# Each option of a mapping stands on a line of its own.
MAPPING = re.compile(r"^CREATE USER MAPPING FOR .*?^\);$", re.MULTILINE | re.DOTALL)
PASSWORD = re.compile(r"^(    password )'(?:[^']|'')*'", re.MULTILINE)
LOCK_HELD = "another session holds a lock on one of the tables; try again once it has ended"

TABLES = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'schema', n.nspname, 'name', c.relname, 'columns', columns.found,
    'constraints', constraints.found) ORDER BY n.nspname, c.relname), '[]')::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
        'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
        'nullable', NOT a.attnotnull, 'generated', a.attgenerated <> '') ORDER BY a.attnum), '[]')
        AS found
    FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
) columns
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
        'name', o.conname,
        'type', CASE o.contype WHEN 'p' THEN 'primary_key' WHEN 'u' THEN 'unique'
            ELSE 'foreign_key' END,
        'columns', (
            SELECT jsonb_agg(a.attname ORDER BY key.place)
            FROM unnest(o.conkey) WITH ORDINALITY AS key (number, place)
            JOIN pg_attribute a ON a.attrelid = o.conrelid AND a.attnum = key.number),
        'referenced_table', CASE WHEN o.contype = 'f' THEN jsonb_build_object(
            'schema', fn.nspname, 'table', f.relname, 'columns', (
                SELECT jsonb_agg(a.attname ORDER BY key.place)
                FROM unnest(o.confkey) WITH ORDINALITY AS key (number, place)
                JOIN pg_attribute a ON a.attrelid = o.confrelid AND a.attnum = key.number)) END
        )) ORDER BY o.conname), '[]') AS found
    FROM pg_constraint o
    LEFT JOIN pg_class f ON f.oid = o.confrelid
    LEFT JOIN pg_namespace fn ON fn.oid = f.relnamespace
    WHERE o.conrelid = c.oid AND o.contype IN ('p', 'u', 'f')
) constraints
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND n.nspname !~ '^pg_(toast|temp)'
"""


class SchemaUnreadable(Exception):
    """A schema could not be read; the message says why."""


def schema_as_sql(endpoint_id: str, branch_id: str, database: str) -> str:
    """The statements that make the schema: of equal schemas the same. Raises SchemaUnreadable,
    patience.Cancelled."""
    # The name goes by the environment: on the command line it could pass for more than a name.
    # The encoding too is said from the first: what its owner has set may know no way to ours.
    name = {
        "PGDATABASE": database,
        "PGOPTIONS": pinned_options(DUMP_BOUND),
        "PGCLIENTENCODING": "UTF8",
    }
    place = socket_dir(endpoint_id)
    options = running_as(account_of(branch_dir(branch_id)))
    with subprocess.Popen(
        [
            # A subscription is written with its password.
            *(postgres_bin() / "pg_dump", "--schema-only", "--no-subscriptions", "--no-password"),
            *("--host", place, "--port", str(port_of(place)), "--username", PLATFORM_ROLE),
            *("--encoding", "UTF8", f"--lock-wait-timeout={LOCK_WAIT * 1000:.0f}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{**options, "env": {**ENVIRONMENT, **name}},
    ) as process:
        try:
            said, complaint = _read(process)
        finally:
            process.kill()
    if process.returncode:
        words = complaint.decode(errors="replace").strip().removeprefix("pg_dump: ")
        if is_lock_timeout(words):
            words = LOCK_HELD
        raise SchemaUnreadable(words or "pg_dump was ended")
    return _without_passwords(_comparable(said.decode(errors="replace")))


def schema_as_tables(endpoint_id: str, database: str) -> str:
    """The tables with their columns and constraints, as the text of a JSON list.

    Raises SchemaUnreadable, psycopg.Error.
    """
    with session(socket_dir(endpoint_id), database, bound=DUMP_BOUND) as connection:
        row = connection.execute(TABLES).fetchone()
    text = str(row[0]) if row else "[]"
    if len(text) > LONGEST:
        raise SchemaUnreadable(_too_long())
    return text


def _read(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """What the program says and complains of, once it has ended. Raises SchemaUnreadable."""
    assert process.stdout is not None
    assert process.stderr is not None
    said, complaint = bytearray(), bytearray()
    deadline = time.monotonic() + DUMP_BOUND
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, said)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            heed_cancel()
            left = deadline - time.monotonic()
            if left <= 0:
                raise SchemaUnreadable(_too_slow())
            for key, _ in selector.select(min(left, 1.0)):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                key.data.extend(part)
            if len(said) > LONGEST:
                raise SchemaUnreadable(_too_long())
            del complaint[LONGEST_COMPLAINT:]
    try:
        process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise SchemaUnreadable(_too_slow()) from error
    return bytes(said), bytes(complaint)


def is_lock_timeout(complaint: str) -> bool:
    """Whether pg_dump gave up because it waited for a table's lock."""
    return "LOCK TABLE" in complaint


def _comparable(dump: str) -> str:
    """Without the random words that its first and last commands have."""
    found = RESTRICTION.search(dump)
    if found is None:
        return dump
    inner, last, _ = dump[found.end() :].rpartition(f"\\unrestrict {found[2]}\n")
    return found[1] + inner if last else dump


def _without_passwords(dump: str) -> str:
    """Reading a schema is no leave to read what foreign servers know their users by."""
    return MAPPING.sub(lambda found: PASSWORD.sub(r"\1'...'", found[0]), dump)


def _too_slow() -> str:
    return f"it took longer than {DUMP_BOUND:.0f} seconds"


def _too_long() -> str:
    return f"it is longer than {LONGEST >> 20} MiB"
