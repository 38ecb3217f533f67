from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0028_auxiliary_size")]

    operations = [
        migrations.AddField("operation", "not_run_because", models.UUIDField(null=True)),
        migrations.AddField("event", "operation", models.JSONField(null=True)),
    ]
