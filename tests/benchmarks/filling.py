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


def add_branches(
    stack: Stack, project_id: str, count: int, *, parent_id: str, endpoint_on_every: int
) -> None:
    """Add so many branches to the project. One in `endpoint_on_every` gets an idle endpoint."""
    values = {"project": project_id, "parent": parent_id, "count": count}
    with stack.database() as connection:
        connection.execute(BRANCHES, {**values, "every": endpoint_on_every})


def analyze(stack: Stack) -> None:
    with stack.database() as connection:
        connection.execute("VACUUM ANALYZE")
