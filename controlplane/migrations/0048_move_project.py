from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0047_lost_hosts'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='operation',
            name='operation_action_is_known',
        ),
        migrations.AlterField(
            model_name='operation',
            name='action',
            field=models.CharField(choices=[('create_timeline', 'Create a project with its primary branch'), ('create_branch', 'Create a branch'), ('start_compute', 'Start an endpoint'), ('suspend_compute', 'Suspend an endpoint'), ('apply_config', 'Apply a new configuration'), ('check_availability', 'Check that data is sound and an endpoint starts'), ('delete_timeline', "Delete a branch's data"), ('delete_tenant', "Delete a project's data"), ('upgrade_project', 'Move a project to another major version of Postgres'), ('restore_from_store', 'Restore a branch of a lost host from the store'), ('move_project', 'Move a project to another host of its region')], max_length=32),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('action__in', ['create_timeline', 'create_branch', 'start_compute', 'suspend_compute', 'apply_config', 'check_availability', 'delete_timeline', 'delete_tenant', 'upgrade_project', 'restore_from_store', 'move_project'])), name='operation_action_is_known'),
        ),
    ]
