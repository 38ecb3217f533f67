"""Reads what an upgrade compares in a cluster: whoever became a superuser while pg_upgrade ran
could have kept that by any of this.

`rights_in` reads who may do what, in a form that is the same in all major versions. `changed_rows`
compares the rows that Postgres itself has in its catalogs, such as its functions, casts, languages
and system views, with those of a fresh cluster: no client may change any.
"""

from dataclasses import dataclass
from pathlib import Path

from controlplane.compute.processes.session import session, values_of

# {table: rows}; each row begins with a name.
Rights = dict[str, set[tuple[object, ...]]]

# Before Postgres 16, a membership has only the first of the options.
CLUSTER = {
    "roles": """
SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
    rolbypassrls, rolconnlimit, rolpassword, rolvaliduntil::text
FROM pg_authid WHERE oid >= 16384 OR rolsuper OR rolcreaterole OR rolcreatedb OR rolcanlogin
    OR rolreplication OR rolbypassrls
""",
    "memberships": """
SELECT DISTINCT roleid::regrole::text, member::regrole::text, admin_option,
    coalesce((to_jsonb(m)->>'inherit_option')::bool, rolinherit),
    coalesce((to_jsonb(m)->>'set_option')::bool, true)
FROM pg_auth_members m JOIN pg_authid r ON r.oid = member
""",
    "settings": """
SELECT coalesce(datname, ''), coalesce(rolname, ''), unnest(setconfig) FROM pg_db_role_setting
LEFT JOIN pg_database d ON d.oid = setdatabase LEFT JOIN pg_authid r ON r.oid = setrole
""",
    "parameters": "SELECT parname, {acl} FROM pg_parameter_acl, LATERAL (SELECT paracl) AS a(acl)",
    "databases": """
SELECT datname, datdba::regrole::text, datistemplate, datallowconn, {acl}
FROM pg_database, LATERAL (SELECT coalesce(datacl, acldefault('d', datdba))) AS a(acl)
""",
    "subscriptions": "SELECT subname, subowner::regrole::text, subconninfo FROM pg_subscription",
}
# The first part of each row of `objects` is the kind of `acldefault`; '' has no privileges.
OBJECTS = """
SELECT CASE relkind WHEN 'S' THEN 's' ELSE 'r' END, 'pg_class'::regclass, oid, relowner, relacl
FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'f', 'p', 'S', 'c') AND relnamespace <> 99
UNION ALL SELECT 'f', 'pg_proc'::regclass, oid, proowner, proacl FROM pg_proc
UNION ALL SELECT 'n', 'pg_namespace'::regclass, oid, nspowner, nspacl FROM pg_namespace
    WHERE nspname !~ '^pg_(temp|toast)'
UNION ALL SELECT 'T', 'pg_type'::regclass, oid, typowner, typacl FROM pg_type
    WHERE typtype IN ('b', 'd', 'e', 'r') AND typcategory <> 'A'
UNION ALL SELECT 'l', 'pg_language'::regclass, oid, lanowner, lanacl FROM pg_language
UNION ALL SELECT 'F', 'pg_foreign_data_wrapper'::regclass, oid, fdwowner, fdwacl
    FROM pg_foreign_data_wrapper
UNION ALL SELECT 'S', 'pg_foreign_server'::regclass, oid, srvowner, srvacl FROM pg_foreign_server
UNION ALL SELECT '', 'pg_event_trigger'::regclass, oid, evtowner, NULL FROM pg_event_trigger
UNION ALL SELECT '', 'pg_publication'::regclass, oid, pubowner, NULL FROM pg_publication
UNION ALL SELECT '', 'pg_operator'::regclass, oid, oprowner, NULL FROM pg_operator
"""
# Which functions Postgres calls for an object: a new cast, operator class or conversion of types of
# Postgres's own would make it call them wherever it meets these types.
CALLED = """
SELECT 'pg_cast'::regclass, oid, ARRAY[castfunc], concat(castcontext, castmethod) FROM pg_cast
UNION ALL SELECT 'pg_conversion'::regclass, oid, ARRAY[conproc::oid],
    concat_ws(' ', conforencoding, contoencoding, condefault) FROM pg_conversion
UNION ALL SELECT 'pg_opclass'::regclass, oid, '{}',
    concat_ws(' ', opcintype::regtype, opckeytype::regtype, opcdefault) FROM pg_opclass
UNION ALL SELECT 'pg_amop'::regclass, oid, '{}', amopopr::regoperator::text FROM pg_amop
UNION ALL SELECT 'pg_amproc'::regclass, oid, ARRAY[amproc::oid], '' FROM pg_amproc
UNION ALL SELECT 'pg_am'::regclass, oid, ARRAY[amhandler::oid], amtype::text FROM pg_am
UNION ALL SELECT 'pg_transform'::regclass, oid, ARRAY[trffromsql::oid, trftosql], ''
    FROM pg_transform
UNION ALL SELECT 'pg_operator'::regclass, oid, ARRAY[oprcode::oid, oprrest, oprjoin], ''
    FROM pg_operator
UNION ALL SELECT 'pg_type'::regclass, oid, ARRAY[typinput::oid, typoutput, typreceive, typsend,
    typmodin, typmodout, typanalyze, typsubscript], '' FROM pg_type
UNION ALL SELECT 'pg_language'::regclass, oid, ARRAY[lanplcallfoid, laninline, lanvalidator], ''
    FROM pg_language
UNION ALL SELECT 'pg_foreign_data_wrapper'::regclass, oid, ARRAY[fdwhandler, fdwvalidator], ''
    FROM pg_foreign_data_wrapper
UNION ALL SELECT 'pg_ts_parser'::regclass, oid,
    ARRAY[prsstart::oid, prstoken, prsend, prsheadline, prslextype], '' FROM pg_ts_parser
UNION ALL SELECT 'pg_ts_template'::regclass, oid, ARRAY[tmplinit::oid, tmpllexize], ''
    FROM pg_ts_template
"""
# Since Postgres 17, the name of this type has no schema.
IDENTITY = "replace((pg_identify_object(class, id, 0)).identity, 'pg_catalog.json', 'json')"
# Of Postgres's own objects, only those whose privileges were changed.
DATABASE = {
    "objects": f"""
SELECT class::text, {IDENTITY}, owner::regrole::text, {{acl}}
FROM ({OBJECTS}) AS o(kind, class, id, owner, given),
    LATERAL (SELECT CASE WHEN kind = '' THEN NULL
        ELSE coalesce(given, acldefault(kind::"char", owner)) END) AS a(acl)
WHERE id >= 16384 OR given IS DISTINCT FROM (
    SELECT initprivs FROM pg_init_privs WHERE objoid = id AND classoid = class AND objsubid = 0)
""",  # noqa: S608
    "called functions": f"""
SELECT class::text, {IDENTITY}, called::regprocedure[]::text, more
FROM ({CALLED}) AS o(class, id, called, more) WHERE id >= 16384
""",  # noqa: S608
    "columns": """
SELECT (pg_identify_object('pg_class'::regclass, attrelid, attnum)).identity, {acl}
FROM pg_attribute, LATERAL (SELECT attacl) AS a(acl)
WHERE attacl IS NOT NULL AND NOT attisdropped AND attacl IS DISTINCT FROM (SELECT initprivs
    FROM pg_init_privs WHERE objoid = attrelid AND classoid = 'pg_class'::regclass
        AND objsubid = attnum AND attrelid < 16384)
""",
    "functions": """
SELECT f.oid::regprocedure::text, prosecdef, proleakproof, lanname, lanpltrusted,
    CASE WHEN lanname IN ('c', 'internal') OR rolsuper THEN concat_ws(' ', prosrc, probin) END
FROM pg_proc f JOIN pg_language l ON l.oid = prolang JOIN pg_authid r ON r.oid = proowner
WHERE f.oid >= 16384 OR prosecdef
""",
    # There may be millions.
    "large objects": """
SELECT lomowner::regrole::text, {acl}, count(*)
FROM pg_largeobject_metadata, LATERAL (SELECT coalesce(lomacl, acldefault('L', lomowner))) AS a(acl)
GROUP BY 1, 2
""",
    "default privileges": """
SELECT defaclrole::regrole::text, defaclnamespace::regnamespace::text, defaclobjtype, {acl}
FROM pg_default_acl, LATERAL (SELECT defaclacl) AS a(acl)
""",
    "servers": """
SELECT s.srvname, coalesce(usename, ''), srvoptions::text, umoptions::text
FROM pg_foreign_server s LEFT JOIN pg_user_mappings m ON m.srvid = s.oid
""",
    "event triggers": "SELECT evtname, evtevent, evtfoid::regproc::text, evtenabled "
    "FROM pg_event_trigger",
}
# Who granted something depends on the version. MAINTAIN exists since Postgres 17.
ACL = """
array_to_string(ARRAY(
    SELECT concat_ws(' ', nullif(grantee, 0)::regrole, privilege_type, is_grantable)
    FROM aclexplode(acl) WHERE privilege_type <> 'MAINTAIN' ORDER BY 1), ', ')
"""
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


def rights_in(sockets: Path, databases: list[str]) -> Rights:
    """Raises psycopg.Error."""
    found = {}
    for database, queries in [("postgres", CLUSTER), *((name, DATABASE) for name in databases)]:
        # No conversion: names are in the databases' own encodings.
        with session(sockets, database, client_encoding="SQL_ASCII") as connection:
            for table, query in queries.items():
                where = "" if queries is CLUSTER else f' in "{database}"'
                statement = query.replace("{acl}", ACL).encode()
                found[table + where] = set(connection.execute(statement))
    return found


def difference(before: Rights, after: Rights) -> str | None:
    """What the rights differ in, with a name; None if they do not."""
    for table, rows in before.items():
        for row in sorted(rows ^ after[table], key=repr):
            named = (part.decode(errors="replace") for part in row[:2] if isinstance(part, bytes))
            return f"{table}: {' '.join(named)}"
    return None


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
