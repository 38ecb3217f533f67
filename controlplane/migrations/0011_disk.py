from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0010_region_identity'),
    ]

    operations = [
        migrations.AddField(
            model_name='region',
            name='disk_free_bytes',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='region',
            name='disk_reserve_bytes',
            field=models.BigIntegerField(null=True),
        ),
    ]
