"""Lets workers take the jobs that the previous release has put into Procrastinate's tables, and says
whose workers take jobs from ours. Rows stay in those tables for processes of that release."""

from django.db import migrations, models

# A job that was under way is run again, because its worker may have died: the worker of the same
# host has ended. What is done already is not done again. The webhooks have workers of other hosts.
TAKE_OVER = """
CREATE FUNCTION perch_take_over_jobs(queues text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('procrastinate_jobs') IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY WITH former AS (
        DELETE FROM procrastinate_jobs WHERE id IN (
            SELECT id FROM procrastinate_jobs
            WHERE queue_name = ANY(queues)
                AND (status = 'todo' OR status = 'doing' AND queue_name <> 'webhooks')
            FOR UPDATE SKIP LOCKED
        )
        RETURNING *
    )
    INSERT INTO controlplane_job (queue, task, subject, action, account_id, due_at, runs)
    SELECT queue_name, replace(task_name, 'controlplane.', ''), named.subject,
        coalesce(operation.action, ''), coalesce((args->>'account')::bigint, 0),
        coalesce(scheduled_at, now()),
        CASE WHEN former.status = 'todo' AND attempts = 0 THEN '[]'
            ELSE jsonb_build_array(jsonb_build_array(now(), now())) END
    FROM former
    CROSS JOIN LATERAL (
        SELECT coalesce(args->>'operation_id', args->>'branch_id', args->>'reading_id',
            args->>'webhook_id') AS subject
    ) AS named
    LEFT JOIN controlplane_operation AS operation
        ON operation.id = (args->>'operation_id')::uuid
    WHERE named.subject IS NOT NULL
    ORDER BY former.id
    RETURNING queue::text;
END $$;
"""
WITHOUT_FORMER_QUEUE = """
UPDATE controlplane_host SET jobs_version = version
WHERE to_regclass('procrastinate_jobs') IS NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0069_jobs")]

    operations = [
        migrations.AddField(
            "host",
            "jobs_version",
            models.CharField(max_length=40, default="", db_default=""),
        ),
        # Nothing changes in the database.
        migrations.AlterField(
            "webhookdelivery",
            "webhook",
            models.ForeignKey(
                "controlplane.webhook",
                db_constraint=False,
                db_index=False,
                on_delete=models.DO_NOTHING,
                related_name="deliveries",
            ),
        ),
        migrations.RunSQL(TAKE_OVER),
        migrations.RunSQL(WITHOUT_FORMER_QUEUE),
    ]
