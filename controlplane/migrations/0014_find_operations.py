from django.db import migrations, models
import django.db.models.deletion


class Migration(migrations.Migration):

    dependencies = [('controlplane', '0013_notify_of_events')]

    operations = [
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['project', 'action', 'status', 'initiator_type', '-created_at'], name='operations_of_a_kind'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['endpoint', 'action', 'status', 'initiator_type', '-created_at'], name='kinds_of_an_endpoint'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['branch', 'action', 'status', 'initiator_type', '-created_at'], name='kinds_of_a_branch'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['branch', '-created_at'], name='operations_of_a_branch'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['chain'], name='operations_of_a_chain'),
        ),
        # Other indexes begin with each of these three.
        migrations.AlterField(
            model_name='operation',
            name='project',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.project'),
        ),
        migrations.AlterField(
            model_name='operation',
            name='branch',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.branch'),
        ),
        migrations.AlterField(
            model_name='operation',
            name='endpoint',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.endpoint'),
        ),
    ]
