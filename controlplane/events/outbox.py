"""The outbox of webhooks: the jobs that send events.

A trigger on the table of events (migration 0001_squashed_0029) writes the deliveries in the same
statement as the events: one delivery for each webhook that wants an event, and one job for each
such webhook. So exactly the committed events are sent, whichever code writes them. For an account
without webhooks the trigger costs one index lookup, with a cached query plan."""

from collections.abc import Collection
from datetime import datetime

from django.db import connection
from procrastinate.contrib.django import app

from controlplane.database.queue_errors import database_errors
from controlplane.models import Webhook

# The queue belongs to no region: any worker takes its jobs. The trigger contains both names as
# well. The task is named here, not imported, because it is defined in a higher layer.
QUEUE = "webhooks"
TASK = "controlplane.send_deliveries"

TAKE_BACK = "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND task_name = %s AND lock = %s"
WITH_JOB = """
SELECT lock FROM procrastinate_jobs
WHERE status IN ('todo', 'doing') AND task_name = %s AND lock = ANY(%s)
"""


def enqueue_sending(webhook: Webhook, *, at: datetime | None = None) -> None:
    """Enqueue a job that sends the webhook's due deliveries, at once or not before `at`.

    This always adds a job, even if one waits already: that one may be reading the deliveries right
    now, and not see what the caller has written. A superfluous job finds nothing to do.
    """
    with database_errors():
        app.configure_task(TASK, queue=QUEUE, lock=webhook.lock, schedule_at=at).defer(
            webhook_id=webhook.id, account=webhook.account_id
        )


def remove_waiting_jobs(webhook_id: str) -> None:
    """Remove the webhook's waiting jobs, including those that are scheduled for later. The caller
    is the job that runs, and does their work: it reads the deliveries after this call, and so sees
    those that were committed with the removed jobs."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [TASK, webhook_id])


def without_job(webhook_ids: Collection[str]) -> set[str]:
    """The ids of those webhooks that have neither a waiting nor a running job."""
    with connection.cursor() as cursor:
        cursor.execute(WITH_JOB, [TASK, list(webhook_ids)])
        return set(webhook_ids) - {row[0] for row in cursor.fetchall()}
