"""What `manage.py hosts add` prepares for new machines."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0044_hosts")]

    operations = [
        migrations.CreateModel(
            name="HostInvitation",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("content", models.TextField()),
                ("expires_at", models.DateTimeField()),
            ],
        ),
    ]
