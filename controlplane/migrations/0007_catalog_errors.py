from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0006_postgres_settings'),
    ]

    operations = [
        migrations.AddField(
            model_name=name,
            name='catalog_error',
            field=models.TextField(default=''),
        )
        for name in ('database', 'role')
    ] + [
        migrations.AddField(
            model_name=name,
            name='catalog_error_of',
            field=models.DateTimeField(null=True),
        )
        for name in ('database', 'role')
    ]
