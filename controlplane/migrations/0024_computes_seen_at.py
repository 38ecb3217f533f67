"""Keep when a region's computes were last seen, which a start of the service says nothing of."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0023_access_rules")]

    operations = [
        migrations.AddField("region", "computes_seen_at", models.DateTimeField(null=True)),
    ]
