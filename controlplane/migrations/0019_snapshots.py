"""Branches that nobody sees, when a branch was last reset, snapshots, readings of schemas, and the
time that a deleted project can be recovered."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0017_access'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='branch',
            name='branch_name_is_unique',
        ),
        migrations.AddField(
            model_name='branch',
            name='hidden',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='branch',
            name='last_reset_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None), ('hidden', False)), fields=('project', 'name'), name='branch_name_is_unique'),
        ),
    ]
