from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("controlplane", "0026_one_clock")]

    operations = [
        migrations.AddField(
            model_name="region",
            name="outbound_unfiltered",
            field=models.CharField(db_default="", default="", max_length=200),
        ),
    ]
