from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0004_host_and_size'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='request_id',
            field=models.CharField(db_default='', default='', max_length=64),
        ),
    ]
