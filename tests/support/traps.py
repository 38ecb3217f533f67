"""Objects of every kind whose definition Postgres may evaluate, created by the owner of a database.

Each calls a function of the owner that tries to create a superuser whose name has the kind of
object. The function can succeed only if a superuser's session evaluates it.
"""

from tests.support.project import Project

# Definitions with literals of a client's domain, whose CHECK Postgres evaluates when it reads them:
# that of `called` by a function of the client, that of `builtin` by one of Postgres's own that
# executes SQL. They need the schema `trap` and its function `snap`.
LITERALS = """
CREATE FUNCTION trap.holds(kind text) RETURNS bool LANGUAGE plpgsql AS $$
    DECLARE attempt text;
    BEGIN
        -- Only in the platform's sessions.
        IF current_setting('application_name') IN ('perch', 'pg_restore') THEN
            FOREACH attempt IN ARRAY ARRAY[
                'GRANT pg_execute_server_program TO neondb_owner',
                'GRANT pg_write_server_files TO perch_superuser',
                'SET SESSION AUTHORIZATION perch_platform; CREATE ROLE "sprung by it" SUPERUSER',
                'SET ROLE perch_platform; CREATE ROLE "sprung by a role" SUPERUSER',
                'ALTER ROLE perch_superuser SUPERUSER',
                'COPY (SELECT 1) TO PROGRAM ''true''; SELECT lo_create(0)',
                'CREATE FUNCTION trap.left() RETURNS int RETURN 1',
                'CREATE OR REPLACE VIEW trap.seen_by_all AS SELECT 2 AS n',
                'GRANT ALL ON TABLE trap.owned TO PUBLIC',
                'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC',
                'CREATE TEMPORARY TABLE text (n int)',
                'SET search_path TO trap',
                'SET statement_timeout TO 0'
            ] LOOP
                BEGIN EXECUTE attempt; EXCEPTION WHEN OTHERS THEN NULL; END;
            END LOOP;
        END IF;
        RETURN trap.snap(kind) = 1;
    END $$;
-- Postgres does not look what kind of function an operator calls.
CREATE FUNCTION trap.slid(text, text) RETURNS int LANGUAGE plpgsql WINDOW AS $$
    BEGIN EXECUTE format('CREATE ROLE %I SUPERUSER', $1 || $2); RETURN 1;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object THEN RETURN 1; END $$;
CREATE OPERATOR trap.#! (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.slid);
CREATE FUNCTION trap.slides(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE WINDOW AS $$
    BEGIN RETURN $1 + $2 * ('sprung by '::text OPERATOR(trap.#!) 'a window function'::text); END $$;
CREATE OPERATOR trap.#+ (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.slides);
CREATE TABLE trap.sliding (n int, m int GENERATED ALWAYS AS (n + (1 OPERATOR(trap.#+) 2)) STORED)
    PARTITION BY RANGE ((n + (1 OPERATOR(trap.#+) 2)));
CREATE TABLE trap.owned (n int);
CREATE VIEW trap.seen_by_all AS SELECT 1 AS n;
CREATE DOMAIN trap.called AS int CHECK (VALUE > 0 AND trap.holds('a literal''s check'));
CREATE DOMAIN trap.builtin AS int CHECK (VALUE > 0 AND ts_rewrite('a'::tsquery, $q$
    SELECT 'a'::tsquery, (CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
        THEN lo_from_bytea(0, 'sprung')::text ELSE 'b' END)::tsquery $q$) IS NOT NULL);
""" + "".join(
    f"""
CREATE TYPE trap.row_{domain} AS (n trap.{domain});
CREATE TYPE trap.range_{domain} AS RANGE (SUBTYPE = trap.{domain});
CREATE FUNCTION trap.next(trap.{domain}, int) RETURNS trap.{domain} LANGUAGE sql IMMUTABLE
    AS 'SELECT $1';
CREATE TABLE trap.listed_{domain} (k trap.{domain}) PARTITION BY LIST (k);
CREATE TABLE trap.listed_{domain}_1 PARTITION OF trap.listed_{domain} FOR VALUES IN (1);
CREATE TABLE trap.array_{domain} (a trap.{domain}[] DEFAULT '{{1,2}}',
    r trap.row_{domain} DEFAULT '(1)', s trap.range_{domain} DEFAULT '[1,2)',
    n int CHECK (n <> ALL ('{{7}}'::trap.{domain}[]::int[])));
CREATE AGGREGATE trap.total_{domain}(int) (
    SFUNC = trap.next, STYPE = trap.{domain}, INITCOND = '1');
CREATE VIEW trap.literal_{domain} AS SELECT '(1)'::trap.row_{domain} AS r;
CREATE FUNCTION trap.taking_{domain}(a trap.{domain}[] DEFAULT '{{3}}') RETURNS int LANGUAGE sql
    IMMUTABLE BEGIN ATOMIC SELECT cardinality('{{4}}'::trap.{domain}[] || a); END;
CREATE DOMAIN trap.over_{domain} AS trap.row_{domain} DEFAULT '(5)'
    CHECK (VALUE::text <> '(6)'::trap.row_{domain}::text);
CREATE INDEX ON trap.array_{domain} (n) WHERE n = ANY ('{{1}}'::trap.{domain}[]::int[]);
CREATE STATISTICS trap.stat_{domain} ON (n + cardinality('{{1}}'::trap.{domain}[])), n
    FROM trap.array_{domain};
CREATE POLICY literal ON trap.array_{domain} USING (n <> ALL ('{{8}}'::trap.{domain}[]::int[]));
CREATE TABLE trap.keyed_{domain} (n int) PARTITION BY RANGE ((n + trap.taking_{domain}()));
CREATE RULE literal AS ON DELETE TO trap.array_{domain}
    DO ALSO SELECT '(2)'::trap.row_{domain};
"""
    for domain in ("called", "builtin")
)

# Without the privilege, the function returns 1 and has no effect.
TRAPS = """
SET ROLE neondb_owner;
CREATE SCHEMA trap;
CREATE FUNCTION trap.snap(kind text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN EXECUTE format('CREATE ROLE %I SUPERUSER', 'sprung by ' || kind); RETURN 1;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object THEN RETURN 1; END $$;
CREATE FUNCTION trap.spring(kind text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
    BEGIN RETURN trap.snap(kind); END $$;
CREATE FUNCTION trap.sprung(kind text) RETURNS int LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC SELECT trap.spring(kind); END;
CREATE FUNCTION trap.set_config(text, text, bool) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT trap.spring('a name of Postgres')::text$$;
CREATE FUNCTION trap.same(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS
    $$SELECT trap.spring('an operator') OPERATOR(pg_catalog.=) 1$$;
CREATE OPERATOR trap.= (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.same);
CREATE TYPE trap.mood AS ENUM ('good');
CREATE FUNCTION trap.mood_of(trap.mood) RETURNS int LANGUAGE sql IMMUTABLE AS
    $$SELECT trap.spring('a cast')$$;
CREATE CAST (trap.mood AS int) WITH FUNCTION trap.mood_of(trap.mood);
CREATE FUNCTION trap.difference(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE AS
    $$SELECT trap.spring('a range type')::float8$$;
CREATE TYPE trap.span AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = trap.difference);
CREATE FUNCTION trap.taking(a int DEFAULT trap.spring('an argument')) RETURNS int LANGUAGE sql
    IMMUTABLE AS 'SELECT a';
CREATE FUNCTION trap.adds(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS
    $$SELECT trap.spring('an aggregate')$$;
CREATE AGGREGATE trap.added(int) (SFUNC = trap.adds, STYPE = int, INITCOND = '0');
CREATE DOMAIN trap.checked AS int DEFAULT trap.spring('a domain''s default')
    CHECK (VALUE > 0 AND trap.spring('a domain''s check') = 1);
CREATE TABLE trap.bait (
    a int DEFAULT trap.spring('a default') CHECK (trap.spring('a check') = 1),
    b int GENERATED ALWAYS AS (a + trap.spring('a generated column')) STORED,
    c int GENERATED ALWAYS AS (a + trap.sprung('an SQL function')) STORED,
    d trap.checked DEFAULT 1 CHECK ((1 OPERATOR(trap.=) 1)),
    e int GENERATED ALWAYS AS (a + 'good'::trap.mood::int) STORED,
    f int GENERATED ALWAYS AS (a + trap.taking()) STORED,
    span trap.span DEFAULT '[1, 2)',
    EXCLUDE ((a + trap.spring('an exclusion')) WITH OPERATOR(pg_catalog.=))
);
CREATE INDEX ON trap.bait ((a + trap.spring('an index')));
CREATE INDEX ON trap.bait (a) WHERE trap.spring('a predicate') = 1;
CREATE INDEX ON trap.bait USING gist (span);
CREATE STATISTICS trap.stat ON (a + trap.spring('statistics')), a FROM trap.bait;
CREATE VIEW trap.seen AS SELECT trap.spring('a view'), trap.added(1);
CREATE MATERIALIZED VIEW trap.kept AS SELECT trap.spring('a materialized view');
CREATE RULE ruled AS ON UPDATE TO trap.bait DO ALSO SELECT trap.spring('a rule');
ALTER TABLE trap.bait ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON trap.bait USING (trap.spring('a policy') = 1);
CREATE FUNCTION trap.fired() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM trap.spring('a trigger'); RETURN new; END $$;
CREATE TRIGGER fired BEFORE INSERT ON trap.bait FOR EACH ROW
    WHEN (trap.spring('a trigger''s condition') = 1) EXECUTE FUNCTION trap.fired();
CREATE FUNCTION trap.sum(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + $2';
CREATE TABLE trap.parted (a int) PARTITION BY RANGE (trap.sum(a, trap.spring('a partition key')));
CREATE TABLE trap.part (a int CHECK (a > trap.spring('a partition''s check')));
ALTER TABLE trap.parted ATTACH PARTITION trap.part
    FOR VALUES FROM (trap.spring('a bound')) TO (10);
CREATE TABLE trap.rest PARTITION OF trap.parted DEFAULT;
INSERT INTO trap.bait (a) SELECT generate_series(1, 100);
INSERT INTO trap.parted VALUES (3), (30);
CREATE EXTENSION cube SCHEMA trap;
CREATE EXTENSION earthdistance SCHEMA trap;
CREATE EXTENSION postgres_fdw SCHEMA trap;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'localhost');
CREATE FOREIGN TABLE trap.far (a int DEFAULT trap.spring('a foreign table')
    CHECK (trap.spring('a foreign table''s check') = 1)) SERVER elsewhere;
"""
# They change what Postgres answers, or how it reads what it is asked.
SETTINGS = """
ALTER DATABASE neondb SET quote_all_identifiers TO on;
ALTER DATABASE neondb SET array_nulls TO off;
ALTER DATABASE neondb SET transform_null_equals TO on;
"""
TRAPS += (
    LITERALS
    + """
RESET ROLE;
ALTER DATABASE neondb SET search_path TO trap, pg_catalog;
ALTER ROLE neondb_owner SET search_path TO trap, pg_catalog;
"""
    + SETTINGS
)
SPRUNG = """
SELECT rolname FROM pg_roles WHERE rolname LIKE 'sprung by %'
UNION ALL SELECT 'a large object' FROM pg_largeobject_metadata
UNION ALL SELECT 'a function' FROM pg_proc WHERE proname = 'left'
    AND pronamespace = to_regnamespace('trap')
UNION ALL SELECT 'a grant' FROM pg_class WHERE relname = 'owned' AND array_length(relacl, 1) > 1
UNION ALL SELECT 'a view' FROM pg_views WHERE viewname = 'seen_by_all' AND definition !~ '1'
"""
POWERFUL = """
SELECT pg_get_userbyid(member) FROM pg_auth_members
WHERE roleid::regrole::text IN ('pg_execute_server_program', 'pg_read_server_files',
    'pg_write_server_files', 'perch_platform')
UNION SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> 'perch_platform'
"""


def sprung(project: Project, endpoint_id: str | None = None) -> list[str]:
    """Return the kinds of objects that a superuser's session has evaluated in this compute."""
    powerful = project.sql(POWERFUL, endpoint_id=endpoint_id)
    assert powerful == [], powerful
    return [name for (name,) in project.sql(SPRUNG, endpoint_id=endpoint_id)]
