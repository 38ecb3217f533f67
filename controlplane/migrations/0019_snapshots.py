"""Branches that nobody sees, when a branch was last reset, snapshots, readings of schemas, and the
time that a deleted project can be recovered."""

import controlplane.models.names
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0018_branch_fields'),
    ]

    operations = [
        migrations.CreateModel(
            name='SchemaReading',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('database_name', models.CharField(max_length=63)),
                ('format', models.CharField(choices=[('sql', 'The statements that make it'), ('json', 'Its tables, with their columns and constraints')], max_length=4)),
                ('created_at', models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ('finished_at', models.DateTimeField(null=True)),
                ('answer', models.TextField(default='')),
                ('error', models.TextField(default='')),
            ],
        ),
        migrations.CreateModel(
            name='Snapshot',
            fields=[
                ('id', models.CharField(default=controlplane.models.names.new_snapshot_id, max_length=60, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=256)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField(null=True)),
            ],
        ),
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
        migrations.AddField(
            model_name='project',
            name='recoverable_until',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name='branch',
            index=models.Index(condition=models.Q(('deleted_at', None), ('hidden', True)), fields=['project'], name='hidden_branches'),
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(condition=models.Q(('recoverable_until__isnull', False)), fields=['deleted_at'], name='recoverable_projects'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None), ('hidden', False)), fields=('project', 'name'), name='branch_name_is_unique'),
        ),
        migrations.AddField(
            model_name='schemareading',
            name='branch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.branch'),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='data_branch',
            field=models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='snapshot', to='controlplane.branch'),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='snapshots', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='source_branch',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='snapshots', to='controlplane.branch'),
        ),
        migrations.AddIndex(
            model_name='snapshot',
            index=models.Index(condition=models.Q(('expires_at__isnull', False)), fields=['expires_at'], name='snapshots_by_expiry'),
        ),
    ]
