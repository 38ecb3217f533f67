"""What the request was that scheduled an operation. Earlier operations have neither."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0066_samples_as_rows")]

    operations = [
        migrations.AddField(
            "operation", "kind", models.CharField(max_length=32, default="", db_default="")
        ),
        migrations.AddField("operation", "title", models.TextField(default="", db_default="")),
    ]
