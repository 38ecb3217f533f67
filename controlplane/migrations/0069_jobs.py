"""The queue of jobs, in place of Procrastinate's tables, which stay for processes of the previous
release. Workers take over the jobs in them (migration `0070_former_queue`)."""

from django.contrib.postgres.functions import TransactionNow
from django.db import migrations, models

NOTIFY = """
CREATE FUNCTION perch_tell_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perch_jobs#' || NEW.queue, '');
    RETURN NULL;
END $$;
CREATE TRIGGER perch_job_can_be_taken AFTER INSERT OR UPDATE OF queue, due_at ON controlplane_job
    FOR EACH ROW WHEN (NEW.taken_by IS NULL AND NEW.due_at <= now())
    EXECUTE FUNCTION perch_tell_of_job();
"""
OUTBOX = """
CREATE OR REPLACE FUNCTION perch_owe_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH owed AS (
        INSERT INTO controlplane_webhookdelivery
            (webhook_id, event_id, next_attempt_at, gives_up_at)
        SELECT webhook.id, written.id, now(), now() + interval '1 day'
        FROM written JOIN controlplane_webhook AS webhook USING (account_id)
        WHERE webhook.enabled
            AND (webhook.project_id IS NULL OR webhook.project_id = written.project_id)
            AND webhook.event_types && ARRAY[written.type, '*']::varchar[]
        ORDER BY written.id
        RETURNING webhook_id
    )
    INSERT INTO controlplane_job (queue, task, subject, account_id)
    SELECT 'webhooks', 'send_deliveries', webhook.id, webhook.account_id
    FROM controlplane_webhook AS webhook
    WHERE webhook.id IN (SELECT webhook_id FROM owed);
    RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0051_squashed_0068")]

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=63)),
                (
                    "task",
                    models.CharField(
                        max_length=32,
                        choices=[
                            ("run_operation", "Run an operation"),
                            (
                                "reconcile_branch",
                                "Check whether what runs on a branch should run",
                            ),
                            ("read_schema", "Read a schema"),
                            ("send_deliveries", "Send the due deliveries of a webhook"),
                        ],
                    ),
                ),
                ("subject", models.CharField(max_length=64)),
                ("action", models.CharField(max_length=32, default="", db_default="")),
                ("account_id", models.BigIntegerField()),
                ("due_at", models.DateTimeField(db_default=TransactionNow())),
                ("taken_by", models.UUIDField(null=True)),
                ("taken_at", models.DateTimeField(null=True)),
                ("seen_at", models.DateTimeField(null=True)),
                (
                    "runs",
                    models.JSONField(
                        default=list, db_default=models.Value([], models.JSONField())
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        name="waiting_jobs",
                        fields=["queue", "id"],
                        condition=models.Q(taken_by=None),
                    ),
                    models.Index(name="jobs_of_a_subject", fields=["subject"]),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        name="one_taken_job_of_a_subject",
                        fields=["task", "subject"],
                        condition=models.Q(taken_by__isnull=False),
                    )
                ],
            },
        ),
        migrations.RunSQL(NOTIFY),
        migrations.RunSQL(OUTBOX),
    ]
