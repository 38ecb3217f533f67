"""The rows of a region of many hosts, made by SQL: what its metadata would hold, without any data
directory. Triggers and foreign keys are off meanwhile, so the rows are written as they would be in
the end."""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tests.benchmarks.filling import CROWD

# Per host: 2,000 projects of 100 accounts, with five endpoints each. Each endpoint has its branch,
# with a role, a database, a meter and a chain of history, and two operations and an event.
PROJECTS, ACCOUNTS, ENDPOINTS = 2_000, 100, 5
# One endpoint in so many runs.
ONE_ACTIVE_IN = 100
FILLED: tuple[LiteralString, ...] = (
    """
INSERT INTO controlplane_region (id, name, host, port, "default")
VALUES ('local', 'local', 'localhost', 5432, true)
ON CONFLICT DO NOTHING""",
    """
INSERT INTO controlplane_host (id, region_id, address, port, version, pg_version, pg_versions, cpus,
    cpu_load, memory_bytes, disk_bytes, disk_free_bytes, disk_reserve_bytes, worker_seen_at,
    proxy_seen_at, computes_seen_at, pooling_available, pooler_version)
SELECT 'h' || h, 'local', 'h' || h || '.localhost', 5432, %(version)s, 18, '[18]', 32, h %% 32,
    128::bigint << 30, 4::bigint << 40, (2::bigint << 40) + h, 200::bigint << 30,
    -- They give signs of life for as long as the benchmark lasts.
    now() + interval '1 day', now() + interval '1 day', now(), true, '1.25'
FROM generate_series(1, %(hosts)s) h""",
    """
INSERT INTO controlplane_account (id, name, plan, created_at)
SELECT h * 1000 + n, 'account-' || h || '-' || n,
    CASE n %% 4 WHEN 0 THEN 'free' ELSE 'unlimited' END, now() - interval '1 year'
FROM generate_series(1, %(hosts)s) h, generate_series(0, %(accounts)s - 1) n""",
    """
INSERT INTO controlplane_apikey (account_id, name, digest, created_at, last_used_from_addr)
SELECT id, 'key', encode(sha256(('perch_' || name)::bytea), 'hex'), created_at, ''
FROM controlplane_account WHERE id >= 1000""",
    """
INSERT INTO controlplane_project (id, account_id, region_id, host_id, name, pg_version,
    default_endpoint_settings, settings, history_retention_seconds, store_passwords, created_at,
    updated_at)
SELECT 'crowd-' || lpad(h::text, 3, '0') || lpad(n::text, 5, '0'), h * 1000 + n %% %(accounts)s,
    'local', 'h' || h, 'project ' || n, 18, '{}', '{}', 86400, true,
    now() - interval '30 minutes' - n * interval '1 ms', now()
FROM generate_series(1, %(hosts)s) h, generate_series(1, %(projects)s) n""",
    """
INSERT INTO controlplane_branch (id, project_id, host_id, name, current_state, "default", protected,
    catalog_revision, applied_catalog_revision, catalog_mark, logical_size, created_at, updated_at,
    state_changed_at)
SELECT 'br-' || p.id || '-' || n, p.id, p.host_id, 'branch ' || n, 'ready', n = 1, false, 0, 0,
    'x', 30000000, p.created_at, now(), now()
FROM controlplane_project p, generate_series(1, %(endpoints)s) n""",
    """
INSERT INTO controlplane_endpoint (id, project_id, host_id, branch_id, type,
    autoscaling_limit_min_cu, autoscaling_limit_max_cu, settings, pooler_enabled, pooler_mode,
    disabled, passwordless_access, provisioner, suspend_timeout_seconds, current_state, last_active,
    started_at, suspended_at, created_at, updated_at, check_due_at)
SELECT 'ep' || substr(b.id, 3), b.project_id, b.host_id, b.id, 'read_write', 0.25, 1,
    '{"pg_settings": {}}',
    false, 'transaction', false, true, 'k8s-pod', 0,
    CASE WHEN row_number() OVER () %% %(one_active_in)s = 0 THEN 'active' ELSE 'idle' END,
    now() - interval '20 minutes', now() - interval '25 minutes', now() - interval '15 minutes',
    b.created_at, now(), b.created_at + interval '2 hours'
FROM controlplane_branch b""",
    """
INSERT INTO controlplane_role (created_at, updated_at, catalog_error, branch_id, name, verifier,
    encrypted_password, protected, no_login, compute_oid)
SELECT created_at, now(), '', id, 'neondb_owner', repeat('v', 130), repeat('p', 100), false, false,
    16384
FROM controlplane_branch""",
    """
INSERT INTO controlplane_database (created_at, updated_at, catalog_error, branch_id, name,
    owner_name, applied_name, applied_owner, compute_oid)
SELECT created_at, now(), '', id, 'neondb', 'neondb_owner', 'neondb', 'neondb_owner', 16385
FROM controlplane_branch""",
    """
INSERT INTO controlplane_meter (branch_id, compute_units, active_since, stored_bytes, stored_since)
SELECT id, 0, now(), 30000000, now() FROM controlplane_branch""",
    """
INSERT INTO controlplane_historychain (branch_id, host_id, number, first_at, first_lsn, last_at,
    last_lsn, log_bytes, bases, spent_at, updated_at, stored_at)
SELECT id, host_id, 1, now() - interval '20 minutes', 30000000, now(), 60000000, 33554432, '[]',
    now() - interval '15 minutes', now(), now()
FROM controlplane_branch""",
    """
INSERT INTO controlplane_operation (id, project_id, branch_id, endpoint_id, action, status, chain,
    resources, details, failures_count, created_at, updated_at, dispatched_at)
SELECT gen_random_uuid(), project_id, branch_id, id, action, 'finished', gen_random_uuid(),
    ARRAY[branch_id, id], '{}', 0,
    created_at + n * interval '1 minute' + right(branch_id, 1)::int * interval '1 second', now(),
    created_at
FROM controlplane_endpoint,
    unnest(ARRAY['start_compute', 'suspend_compute']) WITH ORDINALITY AS o(action, n)""",
    """
INSERT INTO controlplane_event (account_id, type, project_id, branch_id, endpoint_id, operation_ids,
    actor_type, actor_name, address, at, summary, changes)
SELECT p.account_id, 'endpoint.started', e.project_id, e.branch_id, e.id, '{}', 'client', '', '',
    e.started_at, 'The endpoint has started', '{}'
FROM controlplane_endpoint e JOIN controlplane_project p ON p.id = e.project_id""",
)

# Those that are no constraint's.
PLAIN_INDEXES = """
SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relname LIKE 'controlplane\\_%' AND NOT EXISTS (
    SELECT FROM pg_constraint WHERE conindid = i.indexrelid)
"""


def fill(conninfo: str, *, hosts: int, version: str) -> int:
    """Make a region of so many hosts of this version, h1 and so on, in an empty database that is
    migrated. Returns the number of endpoints."""
    values: dict[str, Any] = {
        "hosts": hosts,
        "version": version,
        "projects": PROJECTS,
        "accounts": ACCOUNTS,
        "endpoints": ENDPOINTS,
        "one_active_in": ONE_ACTIVE_IN,
    }
    with psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor) as session:
        session.execute("SET session_replication_role = replica")
        session.execute("SET maintenance_work_mem = '512MB'")
        # Filling an index afterwards takes a fraction of the time.
        indexes = session.execute(PLAIN_INDEXES).fetchall()
        for name, _ in indexes:
            session.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
        for statement in FILLED:
            session.execute(statement, values)
        for _, definition in indexes:
            session.execute(definition)
        session.execute("VACUUM ANALYZE")
        row = session.execute("SELECT count(*) FROM controlplane_endpoint").fetchone()
        assert row is not None
        return int(row[0])


def fill_projects(session: "psycopg.Connection[Any]", host: str, count: int) -> None:
    """Give a host of the region `local` so many projects of an account of its own, each with one
    idle endpoint."""
    values = {"projects": count, "endpoints": 1, "host": host}
    cursor = psycopg.ClientCursor(session)
    cursor.execute(CROWD, values)
