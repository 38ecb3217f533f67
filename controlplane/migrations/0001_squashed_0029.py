"""The schema of 0.2.0, except some functions that migration 0030 makes anew.

Databases of 0.2.0 have applied the migrations that this one replaces. Older ones are upgraded to
0.2.0 first.
"""

from pathlib import Path
from uuid import uuid4

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import migrations
from django.db.models import (
    DO_NOTHING, PROTECT, SET_NULL, BigIntegerField, BooleanField, CharField, CheckConstraint, DateTimeField, F,
    FloatField, Func, IntegerField, JSONField, OneToOneField, PositiveIntegerField, PositiveSmallIntegerField, Q,
    TextField, UUIDField,
)
from django.db.models.functions import Now

from controlplane.clock import now
from controlplane.migrations._tables import (
    KEY, Squashed, LIST, LIVING, NO, NOW, OBJECT, TIME, index, link, one_of, replaced, table, unique,
)
from controlplane.models.event import TransactionId
from controlplane.models.names import (
    new_branch_id, new_endpoint_id, new_project_id, new_snapshot_id, new_webhook_id,
)

ACTORS = ("user", "client", "idleness", "check", "expiry", "retry", "sql", "platform")


class Migration(Squashed):
    initial = True
    replaces = replaced(
        "0001_initial", "0002_rows_of_one_project", "0003_notify_of_changes", "0004_host_and_size",
        "0005_operation_request_id", "0006_postgres_settings", "0007_catalog_errors", "0008_lanes",
        "0009_region_problems", "0010_region_identity", "0011_disk", "0012_story_and_events",
        "0013_notify_of_events", "0014_find_operations", "0015_find_events", "0016_webhooks", "0017_access",
        "0018_branch_fields", "0019_snapshots", "0020_project_settings", "0021_consumption",
        "0022_catalog_by_sql", "0023_access_rules", "0024_computes_seen_at", "0025_webhook_last_error",
        "0026_one_clock", "0027_region_outbound", "0028_auxiliary_size", "0029_not_run_because",
    )
    operations = [
        table(
            "Account",
            id=KEY, name=CharField(max_length=64, unique=True),
            plan=CharField(max_length=16, default="free", choices={
                "free": "To try it out: a new account's, unless it is made with another",
                "standard": "For work in earnest beside other accounts", "unlimited": "No limit but the host's",
            }),
            created_at=NOW,
            rules=[one_of("account_plan_is_known", "plan", "free", "standard", "unlimited")],
        ),
        table(
            "Event",
            id=KEY, transaction=TransactionId(db_default=Func(function="pg_current_xact_id"), editable=False),
            type=CharField(max_length=48), project_id=CharField(max_length=60, null=True),
            branch_id=CharField(max_length=60, null=True), endpoint_id=CharField(max_length=60, null=True),
            operation_ids=ArrayField(base_field=UUIDField(), default=list, size=None),
            actor_type=CharField(max_length=16), actor_name=CharField(default="", max_length=200),
            api_key_id=BigIntegerField(null=True), address=CharField(default="", max_length=64), at=NOW,
            summary=TextField(), changes=JSONField(default=dict), operation=JSONField(null=True),
            account=link("Account", null=True, db_index=False),
            rules=[
                index("events_in_order", "transaction", "id"),
                index("events_by_time", "at"),
                index("account_events", "account", "-at", "-id"),
                index("account_events_by_type", "account", "type", "-at", "-id"),
                index("account_events_by_actor", "account", "actor_type", "-at", "-id"),
                index("project_events", "project_id", "-at", "-id"),
                index("project_events_by_type", "project_id", "type", "-at", "-id"),
                index("project_events_by_actor", "project_id", "actor_type", "-at", "-id"),
                index("branch_events", "branch_id", "-at", "-id", branch_id__isnull=False),
                index("endpoint_events", "endpoint_id", "-at", "-id", endpoint_id__isnull=False),
                GinIndex(name="operation_events", fields=["operation_ids"]),
                index("account_events_in_order", "account", "transaction", "id"),
                one_of("event_actor_is_known", "actor_type", *ACTORS),
            ],
        ),
        table(
            "Region",
            id=CharField(max_length=60, primary_key=True, serialize=False), name=CharField(max_length=64),
            host=CharField(max_length=200), port=PositiveIntegerField(default=5432),
            default=BooleanField(default=False), pooling_available=BooleanField(default=False),
            worker_seen_at=TIME, proxy_seen_at=TIME, pg_version=PositiveSmallIntegerField(null=True),
            draining=NO, problems=LIST, state_id=CharField(max_length=36, null=True),
            disk_free_bytes=BigIntegerField(null=True), disk_reserve_bytes=BigIntegerField(null=True),
            pooler_version=CharField(db_default="", default="", max_length=16),
            certificate_authority=TextField(db_default="", default=""), computes_seen_at=TIME,
            outbound_unfiltered=CharField(db_default="", default="", max_length=200),
            rules=[unique("one_default_region", "default", default=True)],
        ),
        table(
            "RequestRate",
            name=CharField(max_length=255, primary_key=True, serialize=False), free_at=DateTimeField(),
        ),
        table(
            "TrafficReporter",
            id=UUIDField(primary_key=True, serialize=False), report=BigIntegerField(),
            reported_at=DateTimeField(db_index=True),
        ),
        table(
            "Usage",
            id=KEY, project_id=CharField(max_length=60), branch_id=CharField(max_length=60),
            of_root=BooleanField(),
            span=CharField(max_length=5, choices={
                "hour": "For the last 168 hours", "day": "For the last 60 days",
                "month": "The consumption periods, for a year",
            }),
            start=DateTimeField(), active_seconds=FloatField(db_default=0),
            compute_seconds=FloatField(db_default=0), written_bytes=BigIntegerField(db_default=0),
            transferred_bytes=BigIntegerField(db_default=0), storage_byte_hours=FloatField(db_default=0),
            account=link("Account", db_index=False),
            rules=[
                index("usage_of_a_project", "project_id", "span", "start"),
                index("usage_of_an_account", "account", "span", "start"),
                unique("one_usage_of_a_span", "branch_id", "span", "start"),
            ],
        ),
        table(
            "PostgresSettings",
            version=CharField(max_length=32), known=JSONField(),
            region=link("Region", related_name="postgres_settings", primary_key=True, serialize=False, kind=OneToOneField),
        ),
        table(
            "Project",
            id=CharField(default=new_project_id, max_length=60, primary_key=True, serialize=False),
            name=CharField(max_length=256), pg_version=PositiveSmallIntegerField(),
            default_endpoint_settings=JSONField(default=dict), settings=JSONField(default=dict),
            history_retention_seconds=PositiveIntegerField(default=86400),
            store_passwords=BooleanField(default=True), created_at=NOW, updated_at=NOW, deleted_at=TIME,
            recoverable_until=TIME,
            provisioner=CharField(db_default="k8s-pod", default="k8s-pod", max_length=32),
            account=link("Account", PROTECT, related_name="projects"),
            region=link("Region", PROTECT, related_name="projects"),
            rules=[
                index("projects_of_an_account", "account", "-created_at", "id", **LIVING),
                index("recoverable_projects", "deleted_at", recoverable_until__isnull=False),
            ],
        ),
        table(
            "Webhook",
            id=CharField(default=new_webhook_id, max_length=60, primary_key=True, serialize=False),
            url=CharField(max_length=2048),
            event_types=ArrayField(base_field=CharField(max_length=48), size=None),
            description=CharField(default="", max_length=256), enabled=BooleanField(default=True),
            disabled_reason=CharField(default="", max_length=256), secret=TextField(),
            previous_secret=TextField(default=""), previous_secret_until=TIME,
            failures=PositiveIntegerField(default=0), failing_since=TIME, held_until=TIME,
            sender=UUIDField(null=True), created_at=NOW, updated_at=NOW,
            last_error=TextField(db_default="", default=""),
            account=link("Account", related_name="webhooks"),
            project=link("Project", null=True),
        ),
        table(
            "WebhookDelivery",
            id=KEY,
            status=CharField(max_length=16, db_default="pending", choices={
                "pending": "To be sent, perhaps again", "delivered": "The receiver has taken it",
                "failed": "Given up",
            }),
            asked_for=BooleanField(db_default=False), attempts=PositiveIntegerField(db_default=0),
            next_attempt_at=TIME, gives_up_at=DateTimeField(), attempted_at=TIME,
            duration_ms=PositiveIntegerField(null=True), response_status=PositiveSmallIntegerField(null=True),
            response_body=TextField(db_default=""), error=TextField(db_default=""),
            created_at=DateTimeField(db_default=Now()), ended_at=TIME,
            event=link("Event", DO_NOTHING, db_constraint=False),
            webhook=link("Webhook", related_name="deliveries", db_index=False),
            rules=[
                index("deliveries_of_a_webhook", "webhook", "-id"),
                index("pending_deliveries", "webhook", "-asked_for", "id", status="pending"),
                index("ended_deliveries", "ended_at"),
                one_of("delivery_status_is_known", "status", "pending", "delivered", "failed"),
            ],
        ),
        table(
            "ApiKey",
            id=KEY, name=CharField(max_length=64), digest=CharField(max_length=64, unique=True), created_at=NOW,
            last_used_at=TIME, last_used_from_addr=CharField(default="", max_length=64), revoked_at=TIME,
            expires_at=TIME, read_only=NO,
            account=link("Account", related_name="api_keys"),
            project=link("Project", related_name="api_keys", null=True),
        ),
        table(
            "Branch",
            id=CharField(default=new_branch_id, max_length=60, primary_key=True, serialize=False),
            name=CharField(max_length=256),
            current_state=CharField(max_length=8, default="init", choices={
                "init": "Being created, or its creation failed: not available for querying",
                "ready": "Its data directory is complete",
            }),
            default=BooleanField(default=False), protected=BooleanField(default=False),
            catalog_revision=PositiveIntegerField(default=0),
            applied_catalog_revision=PositiveIntegerField(default=0), created_at=NOW, updated_at=NOW,
            state_changed_at=NOW, deleted_at=TIME, logical_size=BigIntegerField(null=True),
            annotation_value=OBJECT, expires_at=TIME,
            init_source=CharField(max_length=16, default="parent-data", db_default="parent-data", choices={
                "parent-data": "All that is committed on its parent",
                "schema-only": "Roles, databases and their schemas, and no rows",
            }),
            ttl_interval_seconds=BigIntegerField(null=True), hidden=NO, last_reset_at=TIME,
            catalog_mark=TextField(db_default="", default=""),
            auxiliary_size=BigIntegerField(db_default=0, default=0),
            parent=link("Branch", PROTECT, related_name="children", null=True),
            schema_of=link("Branch", SET_NULL, null=True),
            project=link("Project", PROTECT, related_name="branches"),
            rules=[
                index("branches_that_expire", "expires_at", deleted_at=None, expires_at__isnull=False),
                index("branches_by_change", "project", "updated_at", "id", **LIVING),
                index("branches_by_age", "project", "created_at", "id", **LIVING),
                index("hidden_branches", "project", deleted_at=None, hidden=True),
                one_of("branch_state_is_known", "current_state", "init", "ready"),
                unique("one_default_branch", "project", default=True, deleted_at=None),
                one_of("branch_init_source_is_known", "init_source", "parent-data", "schema-only"),
                unique("branch_name_is_unique", "project", "name", deleted_at=None, hidden=False),
            ],
        ),
        table(
            "Database",
            id=KEY, name=CharField(max_length=63), applied_name=CharField(max_length=63, null=True),
            owner_name=CharField(max_length=63), created_at=NOW, updated_at=NOW, deleted_at=TIME,
            catalog_error=TextField(default=""), catalog_error_of=TIME,
            applied_owner=CharField(max_length=63, null=True), compute_oid=BigIntegerField(null=True),
            branch=link("Branch", related_name="databases"),
            rules=[unique("database_name_is_unique", "branch", "name", **LIVING)],
        ),
        table(
            "Endpoint",
            id=CharField(default=new_endpoint_id, max_length=60, primary_key=True, serialize=False),
            name=CharField(max_length=64, null=True),
            type=CharField(max_length=16, default="read_write", choices={"read_write": "Reads and writes"}),
            autoscaling_limit_min_cu=FloatField(default=0.25), autoscaling_limit_max_cu=FloatField(default=1),
            settings=JSONField(default=dict), pooler_enabled=BooleanField(default=False),
            pooler_mode=CharField(max_length=16, default="transaction", choices={
                "transaction": "A server connection for each transaction",
            }),
            disabled=BooleanField(default=False), passwordless_access=BooleanField(default=True),
            provisioner=CharField(default="k8s-pod", max_length=32),
            suspend_timeout_seconds=IntegerField(default=0),
            current_state=CharField(max_length=8, default="init", choices={
                "init": "Just created; its first start is not over", "active": "Its Postgres runs",
                "idle": "Suspended: no process, no memory",
            }),
            last_active=TIME, started_at=TIME, suspended_at=TIME, created_at=NOW, updated_at=NOW,
            deleted_at=TIME,
            branch=link("Branch", PROTECT, related_name="endpoints"),
            project=link("Project", PROTECT, related_name="endpoints"),
            rules=[
                index("endpoints_of_a_project", "project", "created_at", **LIVING),
                index("active_endpoints", "project", current_state="active", deleted_at=None),
                unique("one_endpoint_per_branch", "branch", **LIVING),
                one_of("endpoint_state_is_known", "current_state", "init", "active", "idle"),
                one_of("endpoint_type_is_known", "type", "read_write"),
                one_of("endpoint_pooler_mode_is_known", "pooler_mode", "transaction"),
                CheckConstraint(
                    name="endpoint_limits_are_ordered",
                    condition=Q(
                        autoscaling_limit_max_cu__gte=F("autoscaling_limit_min_cu"),
                        autoscaling_limit_min_cu__gte=0.25,
                    ),
                ),
            ],
        ),
        table(
            "IdempotentRequest",
            id=KEY, key=CharField(max_length=255), fingerprint=CharField(max_length=64),
            status=PositiveSmallIntegerField(), answer=TextField(), created_at=NOW,
            api_key=link("ApiKey"),
            rules=[
                index("idempotent_requests_by_age", "created_at"),
                unique("one_request_of_a_key", "api_key", "key"),
            ],
        ),
        table(
            "Meter",
            compute_units=FloatField(), active_since=DateTimeField(), stored_bytes=BigIntegerField(),
            stored_since=DateTimeField(), written_position=BigIntegerField(null=True),
            written_data=CharField(db_default="", max_length=64),
            branch=link("Branch", related_name="meter", primary_key=True, serialize=False, kind=OneToOneField),
        ),
        table(
            "Operation",
            id=UUIDField(default=uuid4, primary_key=True, serialize=False), action=CharField(max_length=32),
            status=CharField(max_length=16, choices={
                "scheduling": "Waits for an earlier operation", "running": "Handed to the engine",
                "cancelling": "Being brought to a safe end, as somebody has asked for", "finished": "Done",
                "failed": "Given up; `error` says why",
                "cancelled": "Ended before it was done, as somebody has asked for",
            }),
            chain=UUIDField(), resources=ArrayField(base_field=CharField(max_length=60), size=None),
            details=JSONField(default=dict), error=TextField(null=True),
            failures_count=PositiveIntegerField(default=0), retry_at=TIME, created_at=NOW, updated_at=NOW,
            dispatched_at=TIME, request_id=CharField(db_default="", default="", max_length=64),
            lane=CharField(max_length=8, default="requests", db_default="requests", choices={
                "wakes": "A client that wants to connect", "requests": "Whoever sent a request",
                "upkeep": "Nobody: checks, idle suspends, the removal of what was deleted",
            }),
            initiator_address=CharField(db_default="", default="", max_length=64),
            initiator_key_id=BigIntegerField(null=True),
            initiator_name=CharField(db_default="", default="", max_length=200),
            initiator_type=CharField(db_default="platform", default="platform", max_length=16), steps=LIST,
            not_run_because=UUIDField(null=True),
            branch=link("Branch", PROTECT, related_name="operations", null=True, db_index=False),
            endpoint=link("Endpoint", PROTECT, related_name="operations", null=True, db_index=False),
            retry_of=link("Operation", SET_NULL, null=True),
            project=link("Project", PROTECT, related_name="operations", db_index=False),
            rules=[
                index("operations_of_an_endpoint", "endpoint", "action", "-created_at"),
                index(
                    "unfinished_operations", "project", "created_at",
                    status__in=("scheduling", "running", "cancelling"),
                ),
                index("operations_of_a_kind", "project", "action", "status", "initiator_type", "-created_at"),
                index("kinds_of_an_endpoint", "endpoint", "action", "status", "initiator_type", "-created_at"),
                index("kinds_of_a_branch", "branch", "action", "status", "initiator_type", "-created_at"),
                index("operations_of_a_branch", "branch", "-created_at"),
                index("operations_of_a_chain", "chain"),
                one_of(
                    "operation_action_is_known", "action",
                    "create_timeline", "create_branch", "start_compute", "suspend_compute", "apply_config",
                    "check_availability", "delete_timeline", "delete_tenant",
                ),
                unique("operations_of_a_project_in_order", "project", "created_at"),
                one_of("operation_lane_is_known", "lane", "wakes", "requests", "upkeep"),
                one_of(
                    "operation_status_is_known", "status",
                    "scheduling", "running", "cancelling", "finished", "failed", "cancelled",
                ),
                one_of("operation_initiator_is_known", "initiator_type", *ACTORS),
            ],
        ),
        table(
            "Role",
            id=KEY, name=CharField(max_length=63), verifier=TextField(),
            encrypted_password=TextField(default=""), protected=BooleanField(default=False),
            no_login=BooleanField(default=False), created_at=NOW, updated_at=NOW, deleted_at=TIME,
            catalog_error=TextField(default=""), catalog_error_of=TIME, compute_oid=BigIntegerField(null=True),
            made_by_sql=NO, password_is_newer=NO, sessions_end_at=TIME, valid_until=TIME,
            branch=link("Branch", related_name="roles"),
            rules=[unique("role_name_is_unique", "branch", "name", **LIVING)],
        ),
        table(
            "SchemaReading",
            id=UUIDField(default=uuid4, primary_key=True, serialize=False),
            database_name=CharField(max_length=63), format=CharField(max_length=4),
            created_at=DateTimeField(db_index=True, default=now), finished_at=TIME,
            answer=TextField(default=""), error=TextField(default=""),
            branch=link("Branch"),
        ),
        table(
            "Snapshot",
            id=CharField(default=new_snapshot_id, max_length=60, primary_key=True, serialize=False),
            name=CharField(max_length=256), created_at=NOW, expires_at=TIME,
            data_branch=link("Branch", related_name="snapshot", kind=OneToOneField),
            project=link("Project", related_name="snapshots"),
            source_branch=link("Branch", SET_NULL, related_name="snapshots", null=True),
            rules=[index("snapshots_by_expiry", "expires_at", expires_at__isnull=False)],
        ),
        # The foreign keys of two columns refer to it. What `rules` has is made after the SQL.
        migrations.AddConstraint("branch", unique("branch_of_its_project", "id", "project")),
        migrations.RunSQL(Path(__file__).with_suffix(".sql").read_text()),
    ]
