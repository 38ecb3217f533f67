"""The webhooks' outbox: from an event to the job that sends it.

Whoever writes events writes their deliveries with them: a trigger on the table (migration 0016),
in the same statement, adds a delivery for each webhook that wants an event, and a job for each
such webhook. So what is sent was committed and what was committed is sent, whoever writes; and
an account without webhooks costs one look at an index, with a plan that is kept.
"""

from collections.abc import Collection
from datetime import datetime

from django.db import connection
from procrastinate.contrib.django import app

from controlplane.database.queue_errors import database_errors
from controlplane.models import Webhook

# Of no region: any worker takes what is there. The trigger names both as well; the task lies on
# a higher floor.
QUEUE = "webhooks"
TASK = "controlplane.send_deliveries"

TAKE_BACK = "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND task_name = %s AND lock = %s"
WITH_JOB = """
SELECT lock FROM procrastinate_jobs
WHERE status IN ('todo', 'doing') AND task_name = %s AND lock = ANY(%s)
"""


def enqueue_sending(webhook: Webhook, *, at: datetime | None = None) -> None:
    """Have a worker send what is due of the webhook; at once, or not before `at`.

    Always a job of its own, also where one waits already: that one may be looking for deliveries
    at this moment, and not see what the caller has written. One too many finds nothing to do.
    """
    with database_errors():
        app.configure_task(TASK, queue=QUEUE, lock=webhook.lock, schedule_at=at).defer(
            webhook_id=webhook.id, account=webhook.account_id
        )


def take_back(webhook_id: str) -> None:
    """Remove the webhook's jobs that wait, at once or for their time. The caller is the job that
    is done, and does what they would: it looks for deliveries after this, and so sees those that
    were committed with them."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [TASK, webhook_id])


def without_job(webhook_ids: Collection[str]) -> set[str]:
    """Those of the webhooks that no job stands for."""
    with connection.cursor() as cursor:
        cursor.execute(WITH_JOB, [TASK, list(webhook_ids)])
        return set(webhook_ids) - {row[0] for row in cursor.fetchall()}
