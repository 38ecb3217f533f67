"""Reads the schema of a database from a running compute: as the statements that create it, by
Postgres's own pg_dump, or as its tables.

The server is untrusted. So pg_dump runs under the branch's account, its session is pinned as our
own sessions are, and its output is read within limits of size and time.
"""

import os
import re
import selectors
import subprocess
import time

from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.data.relaying import relay_directory
from controlplane.compute.host.accounts import ENVIRONMENT, account_of, limit_command, start_as
from controlplane.compute.host.binaries import major_at, postgres_bin
from controlplane.compute.host.patience import check_cancelled
from controlplane.compute.processes.session import pinned_options, session, socket_dir
from controlplane.compute.settings.configuration import PLATFORM_ROLE

# Bytes of the longest schema: thousands of tables.
MAX_SCHEMA_BYTES = 8 << 20
# Bytes of memory for pg_dump, which holds all definitions before it writes the first one.
MEMORY = 1 << 30
# Seconds that pg_dump may take in all, and may wait for one table's lock.
DUMP_TIMEOUT, LOCK_TIMEOUT = 30.0, 5.0
MAX_COMPLAINT_BYTES = 2_000  # bytes
# pg_dump's `\restrict` with a random key, after its first comments. Together with `\unrestrict`, it
# keeps psql from reading the dump's contents as commands of psql.
RESTRICTION = re.compile(r"\A((?:--[^\n]*\n|\n)*)\\restrict (\S+)\n\n?")
# Texts, names, bodies of functions and comments, in which clients may write anything; ends of
# statements, and beginnings of user mappings. Each character is tried a few times at most, even if
# nothing ends what it begins: a client may fill the dump, and all threads wait for the search.
PART = re.compile(
    r"E'(?:[^'\\]++|\\.|'')*+(?:'|\Z)|'(?:[^']++|'')*+(?:'|\Z)|\"[^\"]*+(?:\"|\Z)"
    r"|\$([A-Za-z_]\w*+|)\$.*?(?:\$\1\$|\Z)|--[^\n]*+|;|CREATE USER MAPPING",
    re.DOTALL,
)
# The name of an option, directly before its value; and the most characters that are looked at.
PASSWORD, MAX_OPTION_LENGTH = re.compile(r"password(?:\w*|[^\n]*\") \Z", re.IGNORECASE), 130
# What libpq or the server says if Postgres starts, stops or has gone.
CONNECTION_LOST = re.compile(
    "the database system is |terminating connection|closed the connection|Connection refused"
)
TOO_SLOW = f"it took longer than {DUMP_TIMEOUT:.0f} seconds"
TOO_LONG = f"it is longer than {MAX_SCHEMA_BYTES >> 20} MiB"
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
    """The statements that create the schema; the same for equal schemas. Raises SchemaUnreadable,
    patience.Cancelled."""
    # By the environment, since on the command line the name could be read as a connection string.
    # The encoding is set here too: one that the owner has set may have no conversion to UTF-8.
    place = socket_dir(endpoint_id)
    major = major_at(place)
    name = {
        "PGDATABASE": database,
        "PGOPTIONS": pinned_options(DUMP_TIMEOUT, major),
        "PGCLIENTENCODING": "UTF8",
        "PGUSER": PLATFORM_ROLE,
    }
    account = account_of(branch_dir(branch_id))
    with (
        relay_directory(place, account) as relay,
        start_as(
            account,
            [
                *limit_command(memory=MEMORY, file_size=0),
                # Left out, as a subscription is dumped with its password.
                *(postgres_bin(major) / "pg_dump", "--schema-only", "--no-subscriptions"),
                *("--no-password", "--encoding", "UTF8"),
                f"--lock-wait-timeout={LOCK_TIMEOUT * 1000:.0f}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, **name, "PGHOST": str(relay)},
        ) as process,
    ):
        try:
            output, complaint = _read(process)
        finally:
            process.kill()
    if process.returncode:
        words = complaint.decode(errors="replace").strip().removeprefix("pg_dump: ")
        raise SchemaUnreadable(reason_in(words) or words or "pg_dump was terminated")
    return _without_passwords(_comparable(output.decode(errors="replace")))


def schema_as_tables(endpoint_id: str, database: str) -> str:
    """The tables with their columns and constraints, as the text of a JSON list.

    Raises SchemaUnreadable, psycopg.Error.
    """
    with session(socket_dir(endpoint_id), database, bound=DUMP_TIMEOUT) as connection:
        row = connection.execute(TABLES).fetchone()
    text = str(row[0]) if row else "[]"
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaUnreadable(TOO_LONG)
    return text


def _read(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """The program's output and errors, once it has ended. Raises SchemaUnreadable."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, complaint = bytearray(), bytearray()
    deadline = time.monotonic() + DUMP_TIMEOUT
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            check_cancelled()
            left = deadline - time.monotonic()
            if left <= 0:
                raise SchemaUnreadable(TOO_SLOW)
            for key, _ in selector.select(min(left, 1.0)):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                key.data.extend(part)
            if len(output) > MAX_SCHEMA_BYTES:
                raise SchemaUnreadable(TOO_LONG)
            del complaint[MAX_COMPLAINT_BYTES:]
    try:
        process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise SchemaUnreadable(TOO_SLOW) from error
    return bytes(output), bytes(complaint)


def reason_in(complaint: str) -> str | None:
    """Why pg_dump gave up, if that was because of a table's lock or of its limit of memory."""
    if "out of memory" in complaint:
        return f"the schema is too large to be read within {MEMORY >> 30} GiB of memory"
    return LOCK_HELD if "LOCK TABLE" in complaint else None


def is_connection_lost(complaint: str) -> bool:
    """True if a session ended, or could not begin, because Postgres starts, stops or has gone."""
    return CONNECTION_LOST.search(complaint) is not None


def _comparable(dump: str) -> str:
    """The dump without the commands that contain its random key."""
    found = RESTRICTION.search(dump)
    if found is None:
        return dump
    inner, last, _ = dump[found.end() :].rpartition(f"\\unrestrict {found[2]}\n")
    return found[1] + inner if last else dump


def _without_passwords(dump: str) -> str:
    """The dump without the values of user mappings' options, and of others named for a password:
    the right to read a schema does not include passwords for foreign servers."""
    is_in_mapping = False

    def shown(found: re.Match[str]) -> str:
        nonlocal is_in_mapping
        part, begin = found[0], found.start()
        if part in ("CREATE USER MAPPING", ";"):
            is_in_mapping = part != ";"
        elif part[0] in "E'" and (
            is_in_mapping or PASSWORD.search(dump, max(0, begin - MAX_OPTION_LENGTH), begin)
        ):
            return "'...'"
        return part

    return PART.sub(shown, dump)
