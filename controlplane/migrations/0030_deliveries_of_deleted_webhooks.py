import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0029_not_run_because")]

    operations = [
        migrations.AlterField(
            "webhookdelivery",
            "webhook",
            models.ForeignKey(
                to="controlplane.webhook",
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                db_index=False,
                db_constraint=False,
            ),
        ),
    ]
