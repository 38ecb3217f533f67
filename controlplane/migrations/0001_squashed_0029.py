"""The schema of 0.2.0, as made by its 29 migrations."""

from pathlib import Path

import controlplane.clock
import controlplane.models.event
import controlplane.models.names
import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # Databases of 0.2.0 have applied all of these. Older ones are upgraded to 0.2.0 first.
    replaces = [
        ("controlplane", "0001_initial"),
        ("controlplane", "0002_rows_of_one_project"),
        ("controlplane", "0003_notify_of_changes"),
        ("controlplane", "0004_host_and_size"),
        ("controlplane", "0005_operation_request_id"),
        ("controlplane", "0006_postgres_settings"),
        ("controlplane", "0007_catalog_errors"),
        ("controlplane", "0008_lanes"),
        ("controlplane", "0009_region_problems"),
        ("controlplane", "0010_region_identity"),
        ("controlplane", "0011_disk"),
        ("controlplane", "0012_story_and_events"),
        ("controlplane", "0013_notify_of_events"),
        ("controlplane", "0014_find_operations"),
        ("controlplane", "0015_find_events"),
        ("controlplane", "0016_webhooks"),
        ("controlplane", "0017_access"),
        ("controlplane", "0018_branch_fields"),
        ("controlplane", "0019_snapshots"),
        ("controlplane", "0020_project_settings"),
        ("controlplane", "0021_consumption"),
        ("controlplane", "0022_catalog_by_sql"),
        ("controlplane", "0023_access_rules"),
        ("controlplane", "0024_computes_seen_at"),
        ("controlplane", "0025_webhook_last_error"),
        ("controlplane", "0026_one_clock"),
        ("controlplane", "0027_region_outbound"),
        ("controlplane", "0028_auxiliary_size"),
        ("controlplane", "0029_not_run_because"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name='Branch',
            fields=[
                ('id', models.CharField(default=controlplane.models.names.new_branch_id, max_length=60, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=256)),
                ('current_state', models.CharField(choices=[('init', 'Being created, or its creation failed: not available for querying'), ('ready', 'Its data directory is complete')], default='init', max_length=8)),
                ('default', models.BooleanField(default=False)),
                ('protected', models.BooleanField(default=False)),
                ('catalog_revision', models.PositiveIntegerField(default=0)),
                ('applied_catalog_revision', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('state_changed_at', models.DateTimeField(default=controlplane.clock.now)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('logical_size', models.BigIntegerField(null=True)),
                ('annotation_value', models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ('expires_at', models.DateTimeField(null=True)),
                ('init_source', models.CharField(choices=[('parent-data', 'All that is committed on its parent'), ('schema-only', 'Roles, databases and their schemas, and no rows')], db_default='parent-data', default='parent-data', max_length=16)),
                ('ttl_interval_seconds', models.BigIntegerField(null=True)),
                ('hidden', models.BooleanField(db_default=False, default=False)),
                ('last_reset_at', models.DateTimeField(null=True)),
                ('catalog_mark', models.TextField(db_default='', default='')),
                ('auxiliary_size', models.BigIntegerField(db_default=0, default=0)),
                ('parent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='controlplane.branch')),
                ('schema_of', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='controlplane.branch')),
            ],
        ),
        migrations.CreateModel(
            name='Region',
            fields=[
                ('id', models.CharField(max_length=60, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('host', models.CharField(max_length=200)),
                ('port', models.PositiveIntegerField(default=5432)),
                ('default', models.BooleanField(default=False)),
                ('pooling_available', models.BooleanField(default=False)),
                ('worker_seen_at', models.DateTimeField(null=True)),
                ('proxy_seen_at', models.DateTimeField(null=True)),
                ('pg_version', models.PositiveSmallIntegerField(null=True)),
                ('draining', models.BooleanField(db_default=False, default=False)),
                ('problems', models.JSONField(db_default=[], default=list)),
                ('state_id', models.CharField(max_length=36, null=True)),
                ('disk_free_bytes', models.BigIntegerField(null=True)),
                ('disk_reserve_bytes', models.BigIntegerField(null=True)),
                ('pooler_version', models.CharField(db_default='', default='', max_length=16)),
                ('certificate_authority', models.TextField(db_default='', default='')),
                ('computes_seen_at', models.DateTimeField(null=True)),
                ('outbound_unfiltered', models.CharField(db_default='', default='', max_length=200)),
            ],
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.CharField(default=controlplane.models.names.new_project_id, max_length=60, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=256)),
                ('pg_version', models.PositiveSmallIntegerField()),
                ('default_endpoint_settings', models.JSONField(default=dict)),
                ('settings', models.JSONField(default=dict)),
                ('history_retention_seconds', models.PositiveIntegerField(default=86400)),
                ('store_passwords', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('recoverable_until', models.DateTimeField(null=True)),
                ('provisioner', models.CharField(db_default='k8s-pod', default='k8s-pod', max_length=32)),
            ],
        ),
        migrations.CreateModel(
            name='RequestRate',
            fields=[
                ('name', models.CharField(max_length=255, primary_key=True, serialize=False)),
                ('free_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Role',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63)),
                ('verifier', models.TextField()),
                ('encrypted_password', models.TextField(default='')),
                ('protected', models.BooleanField(default=False)),
                ('no_login', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('catalog_error', models.TextField(default='')),
                ('catalog_error_of', models.DateTimeField(null=True)),
                ('compute_oid', models.BigIntegerField(null=True)),
                ('made_by_sql', models.BooleanField(db_default=False, default=False)),
                ('password_is_newer', models.BooleanField(db_default=False, default=False)),
                ('sessions_end_at', models.DateTimeField(null=True)),
                ('valid_until', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='SchemaReading',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('database_name', models.CharField(max_length=63)),
                ('format', models.CharField(choices=[('sql', 'The statements that make it'), ('json', 'Its tables, with their columns and constraints')], max_length=4)),
                ('created_at', models.DateTimeField(db_index=True, default=controlplane.clock.now)),
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
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('expires_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='TrafficReporter',
            fields=[
                ('id', models.UUIDField(primary_key=True, serialize=False)),
                ('report', models.BigIntegerField()),
                ('reported_at', models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name='Usage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project_id', models.CharField(max_length=60)),
                ('branch_id', models.CharField(max_length=60)),
                ('of_root', models.BooleanField()),
                ('span', models.CharField(choices=[('hour', 'For the last 168 hours'), ('day', 'For the last 60 days'), ('month', 'The consumption periods, for a year')], max_length=5)),
                ('start', models.DateTimeField()),
                ('active_seconds', models.FloatField(db_default=0)),
                ('compute_seconds', models.FloatField(db_default=0)),
                ('written_bytes', models.BigIntegerField(db_default=0)),
                ('transferred_bytes', models.BigIntegerField(db_default=0)),
                ('storage_byte_hours', models.FloatField(db_default=0)),
            ],
        ),
        migrations.CreateModel(
            name='Webhook',
            fields=[
                ('id', models.CharField(default=controlplane.models.names.new_webhook_id, max_length=60, primary_key=True, serialize=False)),
                ('url', models.CharField(max_length=2048)),
                ('event_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=48), size=None)),
                ('description', models.CharField(default='', max_length=256)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_reason', models.CharField(default='', max_length=256)),
                ('secret', models.TextField()),
                ('previous_secret', models.TextField(default='')),
                ('previous_secret_until', models.DateTimeField(null=True)),
                ('failures', models.PositiveIntegerField(default=0)),
                ('failing_since', models.DateTimeField(null=True)),
                ('held_until', models.DateTimeField(null=True)),
                ('sender', models.UUIDField(null=True)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('last_error', models.TextField(db_default='', default='')),
            ],
        ),
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('status', models.CharField(choices=[('pending', 'To be sent, perhaps again'), ('delivered', 'The receiver has taken it'), ('failed', 'Given up')], db_default='pending', max_length=16)),
                ('asked_for', models.BooleanField(db_default=False)),
                ('attempts', models.PositiveIntegerField(db_default=0)),
                ('next_attempt_at', models.DateTimeField(null=True)),
                ('gives_up_at', models.DateTimeField()),
                ('attempted_at', models.DateTimeField(null=True)),
                ('duration_ms', models.PositiveIntegerField(null=True)),
                ('response_status', models.PositiveSmallIntegerField(null=True)),
                ('response_body', models.TextField(db_default='')),
                ('error', models.TextField(db_default='')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Account',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64, unique=True)),
                ('plan', models.CharField(choices=[('free', "To try it out: a new account's, unless it is made with another"), ('standard', 'For work in earnest beside other accounts'), ('unlimited', "No limit but the host's")], default='free', max_length=16)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('plan__in', ['free', 'standard', 'unlimited'])), name='account_plan_is_known')],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64)),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('last_used_from_addr', models.CharField(default='', max_length=64)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('expires_at', models.DateTimeField(null=True)),
                ('read_only', models.BooleanField(db_default=False, default=False)),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='controlplane.account')),
            ],
        ),
        migrations.CreateModel(
            name='Meter',
            fields=[
                ('branch', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='meter', serialize=False, to='controlplane.branch')),
                ('compute_units', models.FloatField()),
                ('active_since', models.DateTimeField()),
                ('stored_bytes', models.BigIntegerField()),
                ('stored_since', models.DateTimeField()),
                ('written_position', models.BigIntegerField(null=True)),
                ('written_data', models.CharField(db_default='', max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name='Database',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63)),
                ('applied_name', models.CharField(max_length=63, null=True)),
                ('owner_name', models.CharField(max_length=63)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('catalog_error', models.TextField(default='')),
                ('catalog_error_of', models.DateTimeField(null=True)),
                ('applied_owner', models.CharField(max_length=63, null=True)),
                ('compute_oid', models.BigIntegerField(null=True)),
                ('branch', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='databases', to='controlplane.branch')),
            ],
        ),
        migrations.CreateModel(
            name='Endpoint',
            fields=[
                ('id', models.CharField(default=controlplane.models.names.new_endpoint_id, max_length=60, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64, null=True)),
                ('type', models.CharField(choices=[('read_write', 'Reads and writes')], default='read_write', max_length=16)),
                ('autoscaling_limit_min_cu', models.FloatField(default=0.25)),
                ('autoscaling_limit_max_cu', models.FloatField(default=1)),
                ('settings', models.JSONField(default=dict)),
                ('pooler_enabled', models.BooleanField(default=False)),
                ('pooler_mode', models.CharField(choices=[('transaction', 'A server connection for each transaction')], default='transaction', max_length=16)),
                ('disabled', models.BooleanField(default=False)),
                ('passwordless_access', models.BooleanField(default=True)),
                ('provisioner', models.CharField(default='k8s-pod', max_length=32)),
                ('suspend_timeout_seconds', models.IntegerField(default=0)),
                ('current_state', models.CharField(choices=[('init', 'Just created; its first start is not over'), ('active', 'Its Postgres runs'), ('idle', 'Suspended: no process, no memory')], default='init', max_length=8)),
                ('last_active', models.DateTimeField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('suspended_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('branch', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='endpoints', to='controlplane.branch')),
            ],
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('transaction', controlplane.models.event.TransactionId(db_default=models.Func(function='pg_current_xact_id'), editable=False)),
                ('type', models.CharField(max_length=48)),
                ('project_id', models.CharField(max_length=60, null=True)),
                ('branch_id', models.CharField(max_length=60, null=True)),
                ('endpoint_id', models.CharField(max_length=60, null=True)),
                ('operation_ids', django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None)),
                ('actor_type', models.CharField(max_length=16)),
                ('actor_name', models.CharField(default='', max_length=200)),
                ('api_key_id', models.BigIntegerField(null=True)),
                ('address', models.CharField(default='', max_length=64)),
                ('at', models.DateTimeField(default=controlplane.clock.now)),
                ('summary', models.TextField()),
                ('changes', models.JSONField(default=dict)),
                ('operation', models.JSONField(null=True)),
                ('account', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.account')),
            ],
        ),
        migrations.CreateModel(
            name='IdempotentRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=255)),
                ('fingerprint', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField()),
                ('answer', models.TextField()),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('api_key', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.apikey')),
            ],
        ),
        migrations.CreateModel(
            name='Operation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('action', models.CharField(choices=[('create_timeline', 'Create a project with its primary branch'), ('create_branch', 'Create a branch'), ('start_compute', 'Start an endpoint'), ('suspend_compute', 'Suspend an endpoint'), ('apply_config', 'Apply a new configuration'), ('check_availability', 'Check that data is sound and an endpoint starts'), ('delete_timeline', "Delete a branch's data"), ('delete_tenant', "Delete a project's data")], max_length=32)),
                ('status', models.CharField(choices=[('scheduling', 'Waits for an earlier operation'), ('running', 'Handed to the engine'), ('cancelling', 'Being brought to a safe end, as somebody has asked for'), ('finished', 'Done'), ('failed', 'Given up; `error` says why'), ('cancelled', 'Ended before it was done, as somebody has asked for')], max_length=16)),
                ('chain', models.UUIDField()),
                ('resources', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60), size=None)),
                ('details', models.JSONField(default=dict)),
                ('error', models.TextField(null=True)),
                ('failures_count', models.PositiveIntegerField(default=0)),
                ('retry_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=controlplane.clock.now)),
                ('updated_at', models.DateTimeField(default=controlplane.clock.now)),
                ('dispatched_at', models.DateTimeField(null=True)),
                ('request_id', models.CharField(db_default='', default='', max_length=64)),
                ('lane', models.CharField(choices=[('wakes', 'A client that wants to connect'), ('requests', 'Whoever sent a request'), ('upkeep', 'Nobody: checks, idle suspends, the removal of what was deleted')], db_default='requests', default='requests', max_length=8)),
                ('initiator_address', models.CharField(db_default='', default='', max_length=64)),
                ('initiator_key_id', models.BigIntegerField(null=True)),
                ('initiator_name', models.CharField(db_default='', default='', max_length=200)),
                ('initiator_type', models.CharField(db_default='platform', default='platform', max_length=16)),
                ('steps', models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ('not_run_because', models.UUIDField(null=True)),
                ('branch', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.branch')),
                ('endpoint', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.endpoint')),
                ('retry_of', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='controlplane.operation')),
            ],
        ),
        migrations.CreateModel(
            name='PostgresSettings',
            fields=[
                ('region', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='postgres_settings', serialize=False, to='controlplane.region')),
                ('version', models.CharField(max_length=32)),
                ('known', models.JSONField()),
            ],
        ),
        migrations.AddConstraint(
            model_name='region',
            constraint=models.UniqueConstraint(condition=models.Q(('default', True)), fields=('default',), name='one_default_region'),
        ),
        migrations.AddField(
            model_name='project',
            name='account',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='controlplane.account'),
        ),
        migrations.AddField(
            model_name='project',
            name='region',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='controlplane.region'),
        ),
        migrations.AddField(
            model_name='operation',
            name='project',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='operations', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='endpoint',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='endpoints', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='branch',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='branches', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='apikey',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='role',
            name='branch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='roles', to='controlplane.branch'),
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
        migrations.AddField(
            model_name='usage',
            name='account',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.account'),
        ),
        migrations.AddField(
            model_name='webhook',
            name='account',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='controlplane.account'),
        ),
        migrations.AddField(
            model_name='webhook',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='webhookdelivery',
            name='event',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='controlplane.event'),
        ),
        migrations.AddField(
            model_name='webhookdelivery',
            name='webhook',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='controlplane.webhook'),
        ),
        migrations.AddConstraint(
            model_name='database',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('branch', 'name'), name='database_name_is_unique'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['transaction', 'id'], name='events_in_order'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['at'], name='events_by_time'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['account', '-at', '-id'], name='account_events'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['account', 'type', '-at', '-id'], name='account_events_by_type'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['account', 'actor_type', '-at', '-id'], name='account_events_by_actor'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['project_id', '-at', '-id'], name='project_events'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['project_id', 'type', '-at', '-id'], name='project_events_by_type'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['project_id', 'actor_type', '-at', '-id'], name='project_events_by_actor'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('branch_id__isnull', False)), fields=['branch_id', '-at', '-id'], name='branch_events'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('endpoint_id__isnull', False)), fields=['endpoint_id', '-at', '-id'], name='endpoint_events'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=django.contrib.postgres.indexes.GinIndex(fields=['operation_ids'], name='operation_events'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['account', 'transaction', 'id'], name='account_events_in_order'),
        ),
        migrations.AddConstraint(
            model_name='event',
            constraint=models.CheckConstraint(condition=models.Q(('actor_type__in', ['user', 'client', 'idleness', 'check', 'expiry', 'retry', 'sql', 'platform'])), name='event_actor_is_known'),
        ),
        migrations.AddIndex(
            model_name='idempotentrequest',
            index=models.Index(fields=['created_at'], name='idempotent_requests_by_age'),
        ),
        migrations.AddConstraint(
            model_name='idempotentrequest',
            constraint=models.UniqueConstraint(fields=('api_key', 'key'), name='one_request_of_a_key'),
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(condition=models.Q(('deleted_at', None)), fields=['account', '-created_at', 'id'], name='projects_of_an_account'),
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(condition=models.Q(('recoverable_until__isnull', False)), fields=['deleted_at'], name='recoverable_projects'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(fields=['endpoint', 'action', '-created_at'], name='operations_of_an_endpoint'),
        ),
        migrations.AddIndex(
            model_name='operation',
            index=models.Index(condition=models.Q(('status__in', ('scheduling', 'running', 'cancelling'))), fields=['project', 'created_at'], name='unfinished_operations'),
        ),
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
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('action__in', ['create_timeline', 'create_branch', 'start_compute', 'suspend_compute', 'apply_config', 'check_availability', 'delete_timeline', 'delete_tenant'])), name='operation_action_is_known'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.UniqueConstraint(fields=('project', 'created_at'), name='operations_of_a_project_in_order'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('lane__in', ['wakes', 'requests', 'upkeep'])), name='operation_lane_is_known'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['scheduling', 'running', 'cancelling', 'finished', 'failed', 'cancelled'])), name='operation_status_is_known'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('initiator_type__in', ['user', 'client', 'idleness', 'check', 'expiry', 'retry', 'sql', 'platform'])), name='operation_initiator_is_known'),
        ),
        migrations.AddIndex(
            model_name='endpoint',
            index=models.Index(condition=models.Q(('deleted_at', None)), fields=['project', 'created_at'], name='endpoints_of_a_project'),
        ),
        migrations.AddIndex(
            model_name='endpoint',
            index=models.Index(condition=models.Q(('current_state', 'active'), ('deleted_at', None)), fields=['project'], name='active_endpoints'),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('branch',), name='one_endpoint_per_branch'),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=models.Q(('current_state__in', ['init', 'active', 'idle'])), name='endpoint_state_is_known'),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=models.Q(('type__in', ['read_write'])), name='endpoint_type_is_known'),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=models.Q(('pooler_mode__in', ['transaction'])), name='endpoint_pooler_mode_is_known'),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=models.Q(('autoscaling_limit_max_cu__gte', models.F('autoscaling_limit_min_cu')), ('autoscaling_limit_min_cu__gte', 0.25)), name='endpoint_limits_are_ordered'),
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
        migrations.AddIndex(
            model_name='branch',
            index=models.Index(condition=models.Q(('deleted_at', None), ('hidden', True)), fields=['project'], name='hidden_branches'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.CheckConstraint(condition=models.Q(('current_state__in', ['init', 'ready'])), name='branch_state_is_known'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(condition=models.Q(('default', True), ('deleted_at', None)), fields=('project',), name='one_default_branch'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(fields=('id', 'project'), name='branch_of_its_project'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.CheckConstraint(condition=models.Q(('init_source__in', ['parent-data', 'schema-only'])), name='branch_init_source_is_known'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None), ('hidden', False)), fields=('project', 'name'), name='branch_name_is_unique'),
        ),
        migrations.AddConstraint(
            model_name='role',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('branch', 'name'), name='role_name_is_unique'),
        ),
        migrations.AddIndex(
            model_name='snapshot',
            index=models.Index(condition=models.Q(('expires_at__isnull', False)), fields=['expires_at'], name='snapshots_by_expiry'),
        ),
        migrations.AddIndex(
            model_name='usage',
            index=models.Index(fields=['project_id', 'span', 'start'], name='usage_of_a_project'),
        ),
        migrations.AddIndex(
            model_name='usage',
            index=models.Index(fields=['account', 'span', 'start'], name='usage_of_an_account'),
        ),
        migrations.AddConstraint(
            model_name='usage',
            constraint=models.UniqueConstraint(fields=('branch_id', 'span', 'start'), name='one_usage_of_a_span'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(fields=['webhook', '-id'], name='deliveries_of_a_webhook'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(condition=models.Q(('status', 'pending')), fields=['webhook', '-asked_for', 'id'], name='pending_deliveries'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(fields=['ended_at'], name='ended_deliveries'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['pending', 'delivered', 'failed'])), name='delivery_status_is_known'),
        ),
        migrations.RunSQL(Path(__file__).with_suffix(".sql").read_text()),
    ]
