"""Looks after all queues of a worker by one statement every two seconds, where Procrastinate sends
three for each queue: an idle region's hosts would spend most of their statements on that."""

import logging
from collections.abc import Sequence

from procrastinate.connector import BaseConnector

log = logging.getLogger(__name__)

# Writes the heartbeats of the workers. Tells their queues, by the notification of Procrastinate's
# own triggers, of jobs that can be taken: jobs that are tried again become due without one. Returns
# whether any worker of these queues has stopped beating with a job under way.
BEAT = """
WITH beating AS (
    UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id = ANY(%(workers)s)
), told AS (
    SELECT count(pg_notify('procrastinate_queue_v1#' || due.queue_name,
        '{"type": "job_inserted", "job_id": 0}'))
    FROM (
        SELECT DISTINCT queue_name FROM procrastinate_jobs
        WHERE status = 'todo' AND queue_name = ANY(%(queues)s)
            AND (scheduled_at IS NULL OR scheduled_at <= now())
    ) AS due
)
SELECT (SELECT count FROM told) AS told, EXISTS (
    SELECT FROM procrastinate_jobs AS job
    LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
    WHERE job.status = 'doing' AND job.queue_name = ANY(%(queues)s)
        AND NOT worker.id = ANY(%(workers)s) IS TRUE
        AND (worker.id IS NULL OR worker.last_heartbeat < now() - %(dead_after)s * interval '1 s')
) AS has_stalled
"""
# The workers of this process's queues, by Procrastinate's ids.
beating: set[int] = set()


async def beat(connector: BaseConnector, queues: Sequence[str], *, dead_after: float) -> bool:
    """Do this, and return whether a worker of the queues has had no heartbeat for `dead_after`
    seconds and has a job under way. Raises ConnectorException."""
    (row,) = await connector.execute_query_all_async(
        BEAT, workers=list(beating), queues=list(queues), dead_after=dead_after
    )
    return bool(row["has_stalled"])
