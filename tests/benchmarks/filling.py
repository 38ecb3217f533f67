"""Writes thousands of rows directly into the database; creating them by requests would take
hours."""

from tests.support.stack import Stack

BRANCHES = """
WITH made AS (
    INSERT INTO controlplane_branch (id, project_id, parent_id, name, current_state, "default",
        protected, catalog_revision, applied_catalog_revision,
        created_at, updated_at, state_changed_at)
    SELECT 'br-bench-' || n || '-' || substr(%(project)s, length(%(project)s) - 7), %(project)s,
        %(parent)s, 'preview/' || n, 'ready', false, false, 0, 0, now(), now(), now()
    FROM generate_series(1, %(count)s) n
    RETURNING id, project_id)
INSERT INTO controlplane_endpoint (id, project_id, branch_id, type, autoscaling_limit_min_cu,
    autoscaling_limit_max_cu, settings, pooler_enabled, pooler_mode, disabled,
    passwordless_access, provisioner, suspend_timeout_seconds, current_state, last_active,
    created_at, updated_at)
SELECT 'ep' || substr(id, 3), project_id, id, 'read_write', 0.25, 1, '{"pg_settings": {}}',
    false, 'transaction', false, true, 'k8s-pod', 0, 'idle', now(), now(), now()
FROM made WHERE split_part(id, '-', 3)::int %% %(every)s = 0
"""
OPERATIONS = """
INSERT INTO controlplane_operation (id, project_id, action, status, chain, resources, details,
    failures_count, created_at, updated_at, dispatched_at)
SELECT gen_random_uuid(), %(project)s, 'start_compute', 'finished', gen_random_uuid(), '{}',
    '{}', 0, at, at, at
FROM (SELECT now() - n * interval '1 second' AS at FROM generate_series(1, %(count)s) n) times
"""
# Projects of 10,000 accounts, each with so many endpoints and twice as many operations.
CROWD = """
WITH account AS (
    INSERT INTO controlplane_account (name, plan, created_at)
    VALUES ('a crowd on ' || %(host)s, 'unlimited', now()) RETURNING id),
project AS (
    INSERT INTO controlplane_project (id, account_id, region_id, host_id, name, pg_version,
        default_endpoint_settings, settings, history_retention_seconds, store_passwords,
        created_at, updated_at)
    SELECT 'crowd-' || %(host)s || '-' || n, account.id, 'local', %(host)s, 'one of many', 18,
        '{}', '{}', 86400, true, now(), now()
    FROM account, generate_series(1, %(projects)s) n RETURNING id),
made AS (
    INSERT INTO controlplane_branch (id, project_id, name, current_state, "default", protected,
        active_seconds, compute_seconds, catalog_revision, applied_catalog_revision,
        created_at, updated_at, state_changed_at)
    SELECT 'br-' || project.id || '-' || n, project.id, 'branch ' || n, 'ready', n = 1, false,
        0, 0, 0, 0, now(), now(), now()
    FROM project, generate_series(1, %(endpoints)s) n
    RETURNING id, project_id),
endpoint AS (
    INSERT INTO controlplane_endpoint (id, project_id, branch_id, type, autoscaling_limit_min_cu,
        autoscaling_limit_max_cu, settings, pooler_enabled, pooler_mode, disabled,
        passwordless_access, provisioner, suspend_timeout_seconds, current_state, last_active,
        created_at, updated_at)
    SELECT 'ep' || substr(id, 3), project_id, id, 'read_write', 0.25, 1, '{"pg_settings": {}}',
        false, 'transaction', false, true, 'k8s-pod', 0, 'idle', now(), now(), now()
    FROM made)
INSERT INTO controlplane_operation (id, project_id, branch_id, action, status, chain, resources,
    details, failures_count, created_at, updated_at, dispatched_at)
SELECT gen_random_uuid(), project_id, id, 'start_compute', 'finished', gen_random_uuid(), '{}',
    '{}', 0, at, at, at
FROM (SELECT *, now() - row_number() OVER () * interval '1 microsecond' AS at FROM made) made
"""
CHAINS = """
INSERT INTO controlplane_historychain (branch_id, number, first_at, first_lsn, last_at, last_lsn,
    log_bytes, bases, updated_at)
SELECT id, 1, now() - interval '1 day', 30000000, now(), 60000000, 33554432,
    jsonb_build_array(jsonb_build_object('at', now() - interval '1 day', 'lsn', 30000000,
        'bytes', 40000000)), now()
FROM controlplane_branch WHERE project_id LIKE 'crowd-%'
"""


def add_branches(
    stack: Stack, project_id: str, count: int, *, parent_id: str, endpoint_on_every: int
) -> None:
    """Add so many branches to the project. One in `endpoint_on_every` gets an idle endpoint."""
    values = {"project": project_id, "parent": parent_id, "count": count}
    with stack.database() as connection:
        connection.execute(BRANCHES, {**values, "every": endpoint_on_every})


def add_operations(stack: Stack, project_id: str, count: int) -> None:
    """Add so many finished operations to the project, one for each second until now."""
    with stack.database() as connection:
        connection.execute(OPERATIONS, {"project": project_id, "count": count})


def add_crowd(stack: Stack, projects: int, endpoints: int) -> None:
    """Add so many projects of another account, each with so many endpoints and operations."""
    with stack.database() as connection:
        values = {"projects": projects, "endpoints": endpoints, "host": "local"}
        connection.execute(CROWD, values)


def analyze(stack: Stack) -> None:
    with stack.database() as connection:
        connection.execute("VACUUM ANALYZE")


def set_history(stack: Stack, *, has_history: bool) -> None:
    """Let the crowd's endpoints have been suspended, and give their branches a history or none."""
    with stack.database() as connection:
        connection.execute(
            "UPDATE controlplane_project SET history_retention_seconds = %s"
            " WHERE id LIKE 'crowd-%%'",
            [86_400 if has_history else 0],
        )
        connection.execute(
            "UPDATE controlplane_endpoint SET suspended_at = now() - interval '1 hour'"
            " WHERE project_id LIKE 'crowd-%'"
        )
        connection.execute(
            "DELETE FROM controlplane_historychain WHERE branch_id LIKE 'br-crowd-%'"
        )
        if has_history:
            connection.execute(CHAINS)
