from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0057_locale_of_a_project")]

    operations = [
        migrations.AddField(
            model_name="endpoint",
            name="pg_release",
            field=models.CharField(db_default="", default="", max_length=32),
        ),
    ]
