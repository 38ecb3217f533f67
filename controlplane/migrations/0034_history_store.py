from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0033_time_travel")]

    operations = [
        migrations.AddField("historychain", "stored_at", models.DateTimeField(null=True)),
        migrations.AddField(
            "region", "history_store", models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
        ),
    ]
