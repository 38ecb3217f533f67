import django.db.models.deletion
from django.db import migrations, models

# Keeps a role's password when its row gets another one, goes to another branch or is deleted.
KEEP = """
CREATE FUNCTION perch_keep_former_password() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO controlplane_formerpassword
        (branch_id, verifier, encrypted_password, replaced_at)
    VALUES (OLD.branch_id, OLD.verifier, OLD.encrypted_password, now());
    RETURN NULL;
END $$;

CREATE TRIGGER former_password_of_changed_role
AFTER UPDATE OF verifier, branch_id ON controlplane_role FOR EACH ROW
WHEN (OLD.verifier <> '' AND
    (OLD.verifier IS DISTINCT FROM NEW.verifier OR OLD.branch_id IS DISTINCT FROM NEW.branch_id))
EXECUTE FUNCTION perch_keep_former_password();

CREATE TRIGGER former_password_of_deleted_role
AFTER DELETE ON controlplane_role FOR EACH ROW WHEN (OLD.verifier <> '')
EXECUTE FUNCTION perch_keep_former_password();
"""
KEEP_NO_MORE = """
DROP TRIGGER former_password_of_changed_role ON controlplane_role;
DROP TRIGGER former_password_of_deleted_role ON controlplane_role;
DROP FUNCTION perch_keep_former_password();
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0030_deliveries_of_deleted_webhooks")]

    operations = [
        migrations.CreateModel(
            name="HistoryChain",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("first_at", models.DateTimeField()),
                ("first_lsn", models.BigIntegerField()),
                ("last_at", models.DateTimeField()),
                ("last_lsn", models.BigIntegerField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("end_reason", models.CharField(max_length=64, default="", db_default="")),
                ("log_bytes", models.BigIntegerField(default=0)),
                ("bases", models.JSONField(default=list)),
                ("updated_at", models.DateTimeField()),
                (
                    "branch",
                    models.ForeignKey(
                        to="controlplane.branch",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="history_chains",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        name="history_chain_is_unique", fields=["branch", "number"]
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="FormerPassword",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("branch_id", models.CharField(max_length=60)),
                ("verifier", models.TextField()),
                ("encrypted_password", models.TextField(default="")),
                ("replaced_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(name="former_passwords", fields=["branch_id", "replaced_at"])
                ]
            },
        ),
        migrations.AddField("branch", "parent_timestamp", models.DateTimeField(null=True)),
        migrations.AddField("branch", "parent_lsn", models.BigIntegerField(null=True)),
        migrations.RunSQL(KEEP, KEEP_NO_MORE),
    ]
