from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0027_region_outbound")]

    operations = [
        migrations.AddField(
            "branch", "auxiliary_size", models.BigIntegerField(db_default=0, default=0)
        ),
    ]
