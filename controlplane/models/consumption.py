"""Reads consumption: the rows of `usage`, plus what each meter has counted since they were written.

Each function executes one statement, however many rows there are. The callers check access.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from string import Template
from typing import Any, cast

from django.db import connection

from controlplane import clock
from controlplane.database.base import DatabaseWrapper
from controlplane.models.branch import Branch
from controlplane.models.consumed import NOTHING, Consumed, period_of
from controlplane.models.project import Project
from controlplane.models.usage import Span


def _sum(column: str) -> str:
    """The sum for SQL. What a hostile compute has said of its branch must not make it too large for
    a statement that reads several projects."""
    return f"least(sum({column}), {2**63 - 1})::bigint"


# For a meter `m`, between `k.start` and `k.until`: the seconds that its compute ran, and the
# seconds that its bytes were stored.
RAN = "greatest(0, extract(epoch FROM k.until - greatest(m.active_since, k.start)))::float8"
LAY = "greatest(0, extract(epoch FROM k.until - greatest(m.stored_since, k.start)))::float8"
PARTS = {
    "counted": "active_seconds, compute_seconds, written_bytes, transferred_bytes,"
    " storage_byte_hours, history_byte_hours",
    "metered": f"CASE WHEN m.compute_units > 0 THEN {RAN} ELSE 0 END AS active_seconds,"
    f" m.compute_units * {RAN} AS compute_seconds, 0 AS written_bytes, 0 AS transferred_bytes,"
    f" {LAY} / 3600 * m.stored_bytes AS storage_byte_hours,"
    f" {LAY} / 3600 * m.history_bytes AS history_byte_hours",
    "sums": "sum(active_seconds)::float8, sum(compute_seconds)::float8,"
    f" {_sum('written_bytes')}, {_sum('transferred_bytes')},"
    " coalesce(sum(storage_byte_hours) FILTER (WHERE of_root), 0)::float8,"
    " coalesce(sum(storage_byte_hours) FILTER (WHERE NOT of_root), 0)::float8,"
    " sum(history_byte_hours)::float8",
    "stored": f"{_sum('stored_bytes')}, {_sum('history_bytes')}",
}
# What each of several projects or branches consumed in the period that began at `start`, and stores
# now.
TOTALS = Template("""
SELECT owner, $sums, $stored, max(last_active)
FROM (
    SELECT $of_usage AS owner, of_root, $counted,
        0 AS stored_bytes, 0 AS history_bytes, NULL::timestamptz AS last_active
    FROM controlplane_usage u
    WHERE $of_usage $chosen AND span = 'month' AND start = %(start)s
    UNION ALL
    SELECT $of_branch, b.parent_id IS NULL, $metered, m.stored_bytes, m.history_bytes,
        NULL::timestamptz
    FROM controlplane_branch b JOIN controlplane_meter m ON m.branch_id = b.id
    CROSS JOIN (SELECT %(start)s::timestamptz AS start, now() AS until) k
    WHERE $of_branch $chosen
        AND (m.compute_units > 0 OR m.stored_bytes > 0 OR m.history_bytes > 0)
    UNION ALL
    SELECT $of_endpoint, false, 0, 0, 0, 0, 0, 0, 0, 0, e.last_active
    FROM controlplane_endpoint e
    WHERE $of_endpoint $chosen AND e.last_active IS NOT NULL
) one GROUP BY owner
""")
OF_PROJECTS = {
    "of_usage": "u.project_id",
    "of_branch": "b.project_id",
    "of_endpoint": "e.project_id",
}
TOTALS_OF_PROJECTS = TOTALS.substitute(PARTS, **OF_PROJECTS, chosen="= ANY(%(ids)s)")
TOTALS_OF_BRANCHES = TOTALS.substitute(
    PARTS,
    of_usage="u.branch_id",
    of_branch="b.id",
    of_endpoint="e.branch_id",
    chosen="= ANY(%(ids)s)",
)
# The same of the project `t`, for a statement that reads its row.
FIELDS = [one.name for one in fields(Consumed)]
JOINED_TOTALS = (
    f"LEFT JOIN LATERAL ({TOTALS.substitute(PARTS, **OF_PROJECTS, chosen='= t.id')})"
    f" c (owner, {', '.join(FIELDS)}) ON true"
)
# Consumption by hour, day or month (a `part`), of a whole account or by project. The meters are
# first summed by the part in which they began (`begun`), and the running totals of these sums give
# each part's value. So the number of parts is not multiplied by the number of meters, of which
# there may be 50,000.
HISTORY = Template("""
WITH part AS (
    SELECT one AS start, extract(epoch FROM least(one + %(step)s::interval, now()) - one) AS seconds
    FROM generate_series(
        %(since)s::timestamptz, %(until)s::timestamptz - interval '1 microsecond',
        %(step)s::interval
    ) one
), metered AS (
    SELECT p.id AS project_id, b.parent_id IS NULL AS of_root, m.*
    FROM controlplane_project p
    JOIN controlplane_branch b ON b.project_id = p.id
    JOIN controlplane_meter m ON m.branch_id = b.id
    WHERE p.account_id = %(account)s AND $of_project
), begun AS (
    SELECT owner, date_trunc(%(span)s, since, 'UTC') AS start,
        sum(active) AS active, sum(active * late) AS active_late,
        sum(units) AS units, sum(units * late) AS units_late,
        sum(root) AS root, sum(root * late) AS root_late,
        sum(child) AS child, sum(child * late) AS child_late,
        sum(past) AS past, sum(past * late) AS past_late
    FROM (
        SELECT $owner AS owner, greatest(active_since, %(since)s) AS since,
            1 AS active, compute_units AS units, 0 AS root, 0 AS child, 0 AS past
        FROM metered WHERE compute_units > 0
        UNION ALL
        SELECT $owner, greatest(stored_since, %(since)s), 0, 0,
            CASE WHEN of_root THEN stored_bytes / 3600.0::float8 ELSE 0 END,
            CASE WHEN of_root THEN 0 ELSE stored_bytes / 3600.0::float8 END,
            history_bytes / 3600.0::float8
        FROM metered WHERE stored_bytes > 0 OR history_bytes > 0
    ) rate
    -- Seconds that they missed of the part in which they began.
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM since - date_trunc(%(span)s, since, 'UTC'))::float8 AS late
    ) missed
    GROUP BY owner, 2
), running AS (
    SELECT owner, part.start,
        $active AS active, $units AS units, $root AS root, $child AS child, $past AS past
    FROM (SELECT DISTINCT owner FROM begun) owners
    CROSS JOIN part
    LEFT JOIN begun USING (owner, start)
    WINDOW so_far AS (PARTITION BY owner ORDER BY part.start)
)
SELECT owner, start, sum(active)::float8, sum(units)::float8, $moved,
    sum(root)::float8, sum(child)::float8, sum(past)::float8
FROM (
    SELECT $owner AS owner, start, active_seconds AS active, compute_seconds AS units,
        written_bytes AS written, transferred_bytes AS transferred,
        CASE WHEN of_root THEN storage_byte_hours ELSE 0 END AS root,
        CASE WHEN of_root THEN 0 ELSE storage_byte_hours END AS child,
        history_byte_hours AS past
    FROM controlplane_usage
    WHERE account_id = %(account)s AND $of_usage
        AND span = %(span)s AND start >= %(since)s AND start < %(until)s
    UNION ALL
    SELECT owner, start, active, units, 0, 0, root, child, past FROM running
    WHERE active > 0 OR units > 0 OR root > 0 OR child > 0 OR past > 0
) one GROUP BY owner, start ORDER BY owner, start
""")
RUNNING = {
    name: f"sum(coalesce({name}, 0)) OVER so_far * part.seconds - coalesce({name}_late, 0)"
    for name in ("active", "units", "root", "child", "past")
} | {"moved": f"{_sum('written')}, {_sum('transferred')}"}
HISTORY_OF_PROJECTS = HISTORY.substitute(
    RUNNING,
    owner="project_id",
    of_usage="project_id = ANY(%(ids)s)",
    of_project="p.id = ANY(%(ids)s)",
)
HISTORY_OF_ACCOUNT = HISTORY.substitute(
    RUNNING, owner="''::text", of_usage="true", of_project="true"
)
# The projects of an account that existed in these periods, including those whose rows were removed
# since and whose usage is still stored.
PROJECTS = """
SELECT id FROM (
    SELECT p.id FROM controlplane_project p
    WHERE p.account_id = %(account)s AND p.created_at < %(until)s
        AND (p.deleted_at IS NULL OR p.deleted_at >= %(since)s)
    UNION
    SELECT u.project_id FROM controlplane_usage u
    WHERE u.account_id = %(account)s AND u.span = %(span)s
        AND u.start >= %(since)s AND u.start < %(until)s
) known
WHERE id > %(after)s AND (%(only)s::text[] IS NULL OR id = ANY(%(only)s))
ORDER BY id LIMIT %(limit)s
"""


def with_consumed_projects(projects: Sequence[Project]) -> Sequence[Project]:
    """Set `consumed` of each project to what it has consumed in the present period, and return the
    projects."""
    consumed = consumed_by_projects(project.id for project in projects)
    for project in projects:
        project.consumed = consumed.get(project.id, NOTHING)
    return projects


def set_consumed(project: Project) -> None:
    """Set `consumed` of a project that was read with JOINED_TOTALS, of which it has FIELDS."""
    totals = {name: project.__dict__.pop(name) for name in FIELDS}
    project.consumed = Consumed(**{k: v for k, v in totals.items() if v is not None})


def with_consumed_branches(branches: Sequence[Branch]) -> Sequence[Branch]:
    """Set `consumed` of each branch to what it has consumed in the present period, and return the
    branches."""
    consumed = _totals(TOTALS_OF_BRANCHES, [branch.id for branch in branches])
    for branch in branches:
        branch.consumed = consumed.get(branch.id, NOTHING)
    return branches


def consumed_by_projects(ids: Iterable[str]) -> Mapping[str, Consumed]:
    """What the projects have consumed in the present period, by project id. Projects that consumed
    nothing are left out."""
    return _totals(TOTALS_OF_PROJECTS, list(ids))


def history_of_projects(
    account_id: int, ids: Sequence[str], span: Span, since: datetime, until: datetime
) -> Mapping[str, Mapping[datetime, Consumed]]:
    """What each project consumed, by its id and the start of the hour, day or month. Hours, days or
    months in which a project consumed nothing are left out."""
    values = {**_range(account_id, span, since, until), "ids": list(ids)}
    history: dict[str, dict[datetime, Consumed]] = {project_id: {} for project_id in ids}
    for project_id, start, *sums in _rows(HISTORY_OF_PROJECTS, values):
        history[project_id][start] = Consumed(*sums)
    return history


def history_of_account(
    account_id: int, span: Span, since: datetime, until: datetime
) -> Mapping[datetime, Consumed]:
    """As `history_of_projects`, summed over all projects of the account."""
    rows = _rows(HISTORY_OF_ACCOUNT, _range(account_id, span, since, until))
    return {start: Consumed(*sums) for _, start, *sums in rows}


def projects_between(
    account_id: int,
    span: Span,
    since: datetime,
    until: datetime,
    *,
    after: str,
    limit: int,
    only: Sequence[str] | None = None,
) -> list[str]:
    """The ids of the account's projects that existed in that time, also of deleted ones, in
    ascending order: at most `limit` that follow the id `after`, and only those in `only` if it is
    given."""
    values = _range(account_id, span, since, until)
    values |= {"after": after, "limit": limit, "only": None if only is None else list(only)}
    return [row[0] for row in _rows(PROJECTS, values)]


def _totals(statement: str, ids: list[str]) -> Mapping[str, Consumed]:
    if not ids:
        return {}
    values = {"ids": ids, "start": period_of(clock.now())}
    # A prepared statement, because planning takes longer than executing.
    rows = cast(DatabaseWrapper, connection).read(statement, values)
    return {owner: Consumed(*sums) for owner, *sums in rows}


def _range(account_id: int, span: Span, since: datetime, until: datetime) -> dict[str, Any]:
    return {
        "account": account_id,
        "span": span.value,
        "step": f"1 {span.value}",
        "since": since,
        "until": until,
    }


def _rows(statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
