"""Types what projects' settings hold: until now any JSON was taken, and none of it did anything."""

import ipaddress
from typing import Any

from django.db import migrations, models

QUOTA = (
    "active_time_seconds",
    "compute_time_seconds",
    "written_data_bytes",
    "data_transfer_bytes",
    "logical_size_bytes",
)
FLAGS = ("block_public_connections", "enable_logical_replication")
DEFAULTS = {
    "autoscaling_limit_min_cu": (int, float),
    "autoscaling_limit_max_cu": (int, float),
    "suspend_timeout_seconds": int,
    "pg_settings": dict,
}


def type_settings(apps: Any, schema_editor: Any) -> None:
    project_model = apps.get_model("controlplane", "Project")
    branch_model = apps.get_model("controlplane", "Branch")
    rows = project_model.objects.exclude(settings={}, default_endpoint_settings={})
    for project in rows.iterator():
        settings = typed(project.settings)
        defaults = {
            name: value
            for name, value in _mapping(project.default_endpoint_settings).items()
            if name in DEFAULTS and isinstance(value, DEFAULTS[name]) and not isinstance(value, bool)
        }
        if (settings, defaults) == (project.settings, project.default_endpoint_settings):
            continue
        project.settings, project.default_endpoint_settings = settings, defaults
        project.save(update_fields=["settings", "default_endpoint_settings"])
    # Their roles are to have what logical replication needs, from the next start on.
    replicating = project_model.objects.filter(settings__enable_logical_replication=True)
    branch_model.objects.filter(project__in=replicating).update(
        catalog_revision=models.F("catalog_revision") + 1
    )


def typed(stored: Any) -> dict[str, Any]:
    """What of the settings has the form that it must have now."""
    stored = _mapping(stored)
    kept = {name: stored[name] for name in FLAGS if isinstance(stored.get(name), bool)}
    quota = {
        name: value
        for name, value in _mapping(stored.get("quota")).items()
        if name in QUOTA and type(value) is int and 0 <= value < 2**63
    }
    if quota:
        kept["quota"] = quota
    allowed = _mapping(stored.get("allowed_ips"))
    ips = allowed.get("ips")
    # All of the list or nothing: half of it would shut out who was meant to come in.
    if isinstance(ips, list) and len(ips) <= 200 and all(map(_is_range, ips)):
        only = allowed.get("protected_branches_only", allowed.get("primary_branch_only", False))
        kept["allowed_ips"] = {"ips": ips, "protected_branches_only": only is True}
    return kept


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_range(text: Any) -> bool:
    """As `address_ranges.parse_range` reads them."""
    if not isinstance(text, str):
        return False
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        if not dash:
            ipaddress.ip_network(first, strict=False)
            return True
        begin, end = ipaddress.ip_address(first), ipaddress.ip_address(last)
        return begin.version == end.version and int(begin) <= int(end)
    except ValueError:
        return False


class Migration(migrations.Migration):

    dependencies = [("controlplane", "0019_snapshots")]

    operations = [
        migrations.AddField(
            model_name="project",
            name="provisioner",
            field=models.CharField(db_default="k8s-pod", default="k8s-pod", max_length=32),
        ),
        migrations.AddField(
            model_name="region",
            name="pooler_version",
            field=models.CharField(db_default="", default="", max_length=16),
        ),
        migrations.RunPython(type_settings, migrations.RunPython.noop),
    ]
