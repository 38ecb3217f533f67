from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0051_rows_of_a_host")]

    operations = [
        migrations.AddField(
            model_name="project",
            name="locale",
            field=models.CharField(db_default="C", default="C", max_length=32),
        ),
    ]
