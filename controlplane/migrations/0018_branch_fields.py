"""When a branch expires, what was noted about it, and whose schema it was made with."""

import django.db.models.deletion
from django.db import migrations, models

SCHEMAS = """
ALTER TABLE controlplane_branch ADD CONSTRAINT branch_and_schema_share_a_project
    FOREIGN KEY (schema_of_id, project_id) REFERENCES controlplane_branch (id, project_id)
    DEFERRABLE INITIALLY DEFERRED
"""
NO_SCHEMAS = "ALTER TABLE controlplane_branch DROP CONSTRAINT branch_and_schema_share_a_project"


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0017_access'),
    ]

    operations = [
        migrations.AddField(
            model_name='branch',
            name='annotation_value',
            field=models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name='branch',
            name='expires_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='branch',
            name='init_source',
            field=models.CharField(choices=[('parent-data', 'All that is committed on its parent'), ('schema-only', 'Roles, databases and their schemas, and no rows')], db_default='parent-data', default='parent-data', max_length=16),
        ),
        migrations.AddField(
            model_name='branch',
            name='schema_of',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='controlplane.branch'),
        ),
        migrations.AddField(
            model_name='branch',
            name='ttl_interval_seconds',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddIndex(
            model_name='branch',
            index=models.Index(condition=models.Q(('deleted_at', None), ('expires_at__isnull', False)), fields=['expires_at'], name='branches_that_expire'),
        ),
        migrations.AddIndex(
            model_name='branch',
            index=models.Index(condition=models.Q(('deleted_at', None)), fields=['project', 'updated_at', 'id'], name='branches_by_change'),
        ),
        migrations.AddIndex(
            model_name='branch',
            index=models.Index(condition=models.Q(('deleted_at', None)), fields=['project', 'created_at', 'id'], name='branches_by_age'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.CheckConstraint(condition=models.Q(('init_source__in', ['parent-data', 'schema-only'])), name='branch_init_source_is_known'),
        ),
        migrations.RunSQL(SCHEMAS, NO_SCHEMAS),
    ]
