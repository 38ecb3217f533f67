import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0005_operation_request_id'),
    ]

    operations = [
        migrations.CreateModel(
            name='PostgresSettings',
            fields=[
                ('region', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='postgres_settings', serialize=False, to='controlplane.region')),
                ('version', models.CharField(max_length=32)),
                ('known', models.JSONField()),
            ],
        ),
    ]
