from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0035_service_quality")]

    operations = [
        migrations.CreateModel(
            name="SecretKey",
            fields=[
                ("fingerprint", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("since", models.DateTimeField(db_default=Now())),
                ("retired_at", models.DateTimeField(null=True)),
                ("history_key", models.TextField(db_default="", default="")),
            ],
        ),
    ]
