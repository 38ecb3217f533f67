import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0001_squashed_0029")]

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
