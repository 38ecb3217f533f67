"""A region has hosts. Each region of before becomes a region with one host of the same name, which
has all that belongs to a machine.

The region's columns for that stay for one more release: the proxies of the previous release serve
their clients during an upgrade, and read there whether the worker is alive.
"""

import django.db.models.deletion
from django.db import migrations, models

MOVED = (
    *("state_id", "pooling_available", "pooler_version", "pg_version", "pg_versions"),
    *("disk_free_bytes", "disk_reserve_bytes", "worker_seen_at", "proxy_seen_at"),
    *("computes_seen_at", "problems", "proxy_problems", "quality", "backups_since"),
    *("backup_taken_at", "backup_verified_at", "history_store", "outbound_unfiltered"),
    *("certificate_authority", "draining"),
)
COLUMNS = ", ".join(MOVED)
HOSTS = f"""
INSERT INTO controlplane_host (id, region_id, address, port, {COLUMNS})
SELECT id, id, host, port, {COLUMNS} FROM controlplane_region;
ALTER TABLE controlplane_region ALTER pooling_available SET DEFAULT false;
"""
NO_HOSTS = "ALTER TABLE controlplane_region ALTER pooling_available DROP DEFAULT"
SHARE_A_REGION = """
ALTER TABLE controlplane_project ADD CONSTRAINT project_and_host_share_a_region
    FOREIGN KEY (host_id, region_id) REFERENCES controlplane_host (id, region_id)
    DEFERRABLE INITIALLY DEFERRED
"""
MAY_DIFFER = "ALTER TABLE controlplane_project DROP CONSTRAINT project_and_host_share_a_region"
SIGNS_OF_LIFE = """
CREATE FUNCTION perch_sign_of_life_for_older_proxies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE controlplane_region SET worker_seen_at = NEW.worker_seen_at WHERE id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER sign_of_life_for_older_proxies
    AFTER UPDATE OF worker_seen_at ON controlplane_host
    FOR EACH ROW EXECUTE FUNCTION perch_sign_of_life_for_older_proxies();
"""
NO_SIGNS_OF_LIFE = """
DROP TRIGGER sign_of_life_for_older_proxies ON controlplane_host;
DROP FUNCTION perch_sign_of_life_for_older_proxies();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0043_upgrade_project")]

    operations = [
        migrations.CreateModel(
            name="Host",
            fields=[
                ("id", models.CharField(max_length=60, primary_key=True, serialize=False)),
                ("address", models.CharField(max_length=200)),
                ("port", models.PositiveIntegerField(default=5432)),
                ("state_id", models.CharField(max_length=36, null=True)),
                ("state_place", models.CharField(max_length=100, null=True)),
                ("version", models.CharField(db_default="", default="", max_length=40)),
                ("pooling_available", models.BooleanField(db_default=False, default=False)),
                ("pooler_version", models.CharField(db_default="", default="", max_length=16)),
                ("pg_version", models.PositiveSmallIntegerField(null=True)),
                ("pg_versions", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("cpus", models.PositiveIntegerField(null=True)),
                ("cpu_load", models.FloatField(null=True)),
                ("memory_bytes", models.BigIntegerField(null=True)),
                ("disk_bytes", models.BigIntegerField(null=True)),
                ("disk_free_bytes", models.BigIntegerField(null=True)),
                ("disk_reserve_bytes", models.BigIntegerField(null=True)),
                ("worker_seen_at", models.DateTimeField(null=True)),
                ("proxy_seen_at", models.DateTimeField(null=True)),
                ("computes_seen_at", models.DateTimeField(null=True)),
                ("problems", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("proxy_problems", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("quality", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("backups_since", models.DateTimeField(null=True)),
                ("backup_taken_at", models.DateTimeField(null=True)),
                ("backup_verified_at", models.DateTimeField(null=True)),
                ("history_store", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("outbound_unfiltered", models.CharField(db_default="", default="", max_length=200)),
                ("certificate_authority", models.TextField(db_default="", default="")),
                ("draining", models.BooleanField(db_default=False, default=False)),
                (
                    "region",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="hosts",
                        to="controlplane.region",
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            "host", models.UniqueConstraint(fields=["id", "region"], name="host_and_region")
        ),
        migrations.RunSQL(HOSTS, NO_HOSTS),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField("region", name) for name in MOVED]
        ),
        migrations.AddField(
            "project",
            "host",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="projects",
                to="controlplane.host",
            ),
        ),
        migrations.RunSQL("UPDATE controlplane_project SET host_id = region_id", ""),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED", ""),
        migrations.AlterField(
            "project",
            "host",
            models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="projects",
                to="controlplane.host",
            ),
        ),
        migrations.RunSQL(SHARE_A_REGION, MAY_DIFFER),
        migrations.RemoveConstraint("postgressettings", "settings_of_a_major"),
        migrations.RenameField("postgressettings", "region", "host"),
        migrations.AlterField(
            "postgressettings",
            "host",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="postgres_settings",
                to="controlplane.host",
            ),
        ),
        migrations.AddConstraint(
            "postgressettings",
            models.UniqueConstraint(fields=["host", "major"], name="settings_of_a_major"),
        ),
        migrations.RunSQL(SIGNS_OF_LIFE, NO_SIGNS_OF_LIFE),
    ]
