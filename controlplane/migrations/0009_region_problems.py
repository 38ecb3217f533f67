from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0008_lanes'),
    ]

    operations = [
        migrations.AddField(
            model_name='region',
            name='draining',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='region',
            name='problems',
            field=models.JSONField(db_default=[], default=list),
        ),
    ]
