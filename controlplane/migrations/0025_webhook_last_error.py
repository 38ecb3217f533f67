"""Keep with a webhook what its last attempt failed by, which its deliveries tell one by one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0024_computes_seen_at")]

    operations = [
        migrations.AddField("webhook", "last_error", models.TextField(db_default="", default="")),
        # Of those that fail as this comes.
        migrations.RunSQL(
            """
            UPDATE controlplane_webhook AS webhook SET last_error = coalesce((
                SELECT delivery.error FROM controlplane_webhookdelivery AS delivery
                WHERE delivery.webhook_id = webhook.id AND delivery.error <> ''
                ORDER BY delivery.attempted_at DESC NULLS LAST LIMIT 1
            ), '') WHERE failing_since IS NOT NULL
            """,
            migrations.RunSQL.noop,
        ),
    ]
