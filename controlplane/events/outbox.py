"""The outbox of webhooks: the jobs that send events.

A trigger on the table of events (migration `0069_jobs`) writes the deliveries in the same statement
as the events: one delivery for each webhook that wants an event, and one job for each such webhook.
So exactly the committed events are sent, whichever code writes them. For an account without
webhooks the trigger costs one index lookup, with a cached query plan."""

from collections.abc import Collection
from datetime import datetime

from controlplane.models import Job, JobTask, Webhook

# The queue belongs to no host: any worker takes its jobs. The trigger contains the name as well.
QUEUE = "webhooks"


def enqueue_sending(webhook: Webhook, *, at: datetime | None = None) -> None:
    """Enqueue a job that sends the webhook's due deliveries, at once or not before `at`.

    This always adds a job, even if one waits already: that one may be reading the deliveries right
    now, and not see what the caller has written. A superfluous job finds nothing to do.
    """
    Job.enqueue(
        QUEUE,
        task=JobTask.SEND_DELIVERIES,
        subject=webhook.id,
        account_id=webhook.account_id,
        at=at,
    )


def remove_waiting_jobs(webhook_id: str) -> None:
    """Remove the webhook's waiting jobs, including those that are scheduled for later. The caller
    is the job that runs, and does their work: it reads the deliveries after this call, and so sees
    those that were committed with the removed jobs."""
    Job.objects.filter(queue=QUEUE, subject=webhook_id, taken_by=None).delete()


def without_job(webhook_ids: Collection[str]) -> set[str]:
    """The ids of those webhooks that have neither a waiting nor a running job."""
    jobs = Job.objects.filter(queue=QUEUE, subject__in=webhook_ids)
    return set(webhook_ids) - set(jobs.values_list("subject", flat=True))
