"""Keep the trace that an operation belongs to."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0039_history_usage"),)

    operations = (
        migrations.AddField(
            "operation",
            "traceparent",
            models.CharField(db_default="", default="", max_length=55),
        ),
    )
