from django.db import migrations, models

# The jobs that an earlier version left behind go on in the lane of requests.
MOVE_JOBS = """
UPDATE procrastinate_jobs SET queue_name = queue_name || '-requests'
WHERE task_name LIKE 'controlplane.%' AND status IN ('todo', 'doing')
    AND queue_name !~ '-(wakes|requests|upkeep)$'
"""


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0007_catalog_errors'),
        ('procrastinate', '0041_post_retry_failed_job'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='lane',
            field=models.CharField(
                choices=[
                    ('wakes', 'A client that wants to connect'),
                    ('requests', 'Whoever sent a request'),
                    ('upkeep', 'Nobody: checks, idle suspends, the removal of what was deleted'),
                ],
                db_default='requests',
                default='requests',
                max_length=8,
            ),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(
                condition=models.Q(('lane__in', ['wakes', 'requests', 'upkeep'])),
                name='operation_lane_is_known',
            ),
        ),
        migrations.RunSQL(MOVE_JOBS, migrations.RunSQL.noop),
    ]
