"""Keep the trace that an operation belongs to."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0040_endpoint_metrics"),)

    operations = (
        migrations.AddField(
            "operation",
            "traceparent",
            models.CharField(db_default="", default="", max_length=55),
        ),
    )
