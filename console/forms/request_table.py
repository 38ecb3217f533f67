"""The API requests of the console's forms, by the names of the forms' URLs. `api_requests` fills
their bodies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from console.forms.endpoint_settings import ENDPOINT_SETTINGS

PLACE = re.compile(r"\[(\w+)\]")
PROJECT = "/projects/{project_id}"
BRANCH = PROJECT + "/branches/{branch_id}"
ROLE = BRANCH + "/roles/{name}"
DATABASE = BRANCH + "/databases/{name}"
SNAPSHOT = PROJECT + "/snapshots/{snapshot_id}"
ENDPOINT = PROJECT + "/endpoints/{endpoint_id}"


@dataclass(frozen=True)
class Sent:
    """One request. Names in braces are taken from the form's address."""

    method: str
    path: str
    # Where the value of each of the form's fields goes in the body.
    fields: Mapping[str, str] = field(default_factory=dict)
    # The parts of the body that do not depend on the form.
    always: Mapping[str, Any] = field(default_factory=dict)
    # By field: what else the body has if that field is not empty, as its place and its value.
    ticked: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # neonctl's command for the same request, "" if it has none; names in brackets are fields. Its
    # options by field, each with the field's value. Its flags by field: the flag if the field is
    # not empty, and the flag if it is.
    neonctl: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # True if the form sends unchanged values too, with PATCH.
    is_whole: bool = False

    @property
    def beyond_neonctl(self) -> list[str]:
        """The fields that neonctl's command cannot express."""
        expressed = {*self.options, *self.flags, *PLACE.findall(self.neonctl)}
        return [name for name in (*self.fields, *self.ticked) if name not in expressed]


SETTINGS = {one.field: f"endpoint.{one.attribute}" for one in ENDPOINT_SETTINGS}
OF_PROJECT = "--project-id {project_id}"
OF_BRANCH = f"{OF_PROJECT} --branch {{branch_id}}"
# The API's names of a project's quotas.
QUOTA_NAMES = (
    "active_time_seconds",
    "compute_time_seconds",
    "written_data_bytes",
    "data_transfer_bytes",
    "logical_size_bytes",
)
KEPT = {"preserve_under_name": "--preserve-under-name"}
SENT: Mapping[str, Sent] = {
    "project_create": Sent(
        "POST",
        "/projects",
        {
            "name": "project.name",
            "region_id": "project.region_id",
            "pg_version": "project.pg_version",
        },
        {"project": {}},
        neonctl="projects create",
        options={"name": "--name", "region_id": "--region-id"},
    ),
    "project_rename": Sent(
        "PATCH",
        PROJECT,
        {"name": "project.name"},
        neonctl="projects update {project_id}",
        options={"name": "--name"},
        is_whole=True,
    ),
    "project_history": Sent(
        "PATCH", PROJECT, {"retention": "project.history_retention_seconds"}, is_whole=True
    ),
    "project_durability": Sent(
        "PATCH", PROJECT, {"durability": "project.settings.durability"}, is_whole=True
    ),
    "project_addresses": Sent(
        "PATCH",
        PROJECT,
        {
            "ips": "project.settings.allowed_ips.ips",
            "protected_branches_only": "project.settings.allowed_ips.protected_branches_only",
            "block_public_connections": "project.settings.block_public_connections",
            "block_outbound_connections": "project.settings.block_outbound_connections",
        },
        {"project": {"settings": {"allowed_ips": {"ips": []}}}},
        is_whole=True,
    ),
    "project_quotas": Sent(
        "PATCH",
        PROJECT,
        {name: f"project.settings.quota.{name}" for name in QUOTA_NAMES},
        {"project": {"settings": {"quota": dict.fromkeys(QUOTA_NAMES, 0)}}},
        is_whole=True,
    ),
    "project_defaults": Sent(
        "PATCH",
        PROJECT,
        {
            one.field: f"project.default_endpoint_settings.{one.attribute}"
            for one in ENDPOINT_SETTINGS
            if one.is_in_change_form
        },
    ),
    "project_replication": Sent(
        "PATCH", PROJECT, always={"project": {"settings": {"enable_logical_replication": True}}}
    ),
    "project_delete": Sent("DELETE", PROJECT, neonctl="projects delete {project_id}"),
    "branch_create": Sent(
        "POST",
        f"{PROJECT}/branches",
        {
            "name": "branch.name",
            "parent_id": "branch.parent_id",
            "lifetime": "branch.expires_at",
            "protected": "branch.protected",
        },
        ticked={
            "with_endpoint": ("endpoints", [{"type": "read_write"}]),
            "schema_only": ("branch.init_source", "schema-only"),
        },
        neonctl=f"branches create {OF_PROJECT}",
        options={"name": "--name", "parent_id": "--parent", "lifetime": "--expires-at"},
        flags={
            "with_endpoint": ("", "--no-compute"),
            "schema_only": ("--schema-only", ""),
            "protected": ("--protected", ""),
        },
    ),
    "branch_rename": Sent(
        "PATCH",
        BRANCH,
        {"name": "branch.name"},
        neonctl=f"branches rename {{branch_id}} [name] {OF_PROJECT}",
        is_whole=True,
    ),
    "branch_expiry": Sent(
        "PATCH",
        BRANCH,
        {"lifetime": "branch.expires_at"},
        {"branch": {"expires_at": None}},
        neonctl=f"branches set-expiration {{branch_id}} {OF_PROJECT}",
        options={"lifetime": "--expires-at"},
    ),
    "branch_reset": Sent(
        "POST",
        f"{BRANCH}/restore",
        {"preserve_under_name": "preserve_under_name"},
        neonctl=f"branches reset {{branch_id}} --parent {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_restore": Sent(
        "POST",
        f"{BRANCH}/restore",
        {"source_id": "source_branch_id", "preserve_under_name": "preserve_under_name"},
        neonctl=f"branches restore {{branch_id}} [source_id] {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_history_create": Sent(
        "POST",
        f"{PROJECT}/branches",
        {
            "timestamp": "branch.parent_timestamp",
            "lsn": "branch.parent_lsn",
            "name": "branch.name",
            "lifetime": "branch.expires_at",
        },
        {"endpoints": [{"type": "read_write"}]},
    ),
    "branch_history_restore": Sent(
        "POST",
        f"{BRANCH}/restore",
        {
            "timestamp": "source_timestamp",
            "lsn": "source_lsn",
            "preserve_under_name": "preserve_under_name",
        },
        neonctl=f"branches restore {{branch_id}} ^self@[timestamp] {OF_PROJECT}",
        options=KEPT,
    ),
    "branch_set_default": Sent(
        "POST",
        f"{BRANCH}/set_as_default",
        neonctl=f"branches set-default {{branch_id}} {OF_PROJECT}",
    ),
    "branch_delete": Sent("DELETE", BRANCH, neonctl=f"branches delete {{branch_id}} {OF_PROJECT}"),
    "role_create": Sent(
        "POST",
        f"{BRANCH}/roles",
        {"name": "role.name"},
        neonctl=f"roles create {OF_BRANCH}",
        options={"name": "--name"},
    ),
    "role_password": Sent("GET", f"{ROLE}/reveal_password"),
    "role_reset": Sent("POST", f"{ROLE}/reset_password"),
    "role_delete": Sent("DELETE", ROLE, neonctl=f"roles delete {{name}} {OF_BRANCH}"),
    "database_create": Sent(
        "POST",
        f"{BRANCH}/databases",
        {"name": "database.name", "owner_name": "database.owner_name"},
        neonctl=f"databases create {OF_BRANCH}",
        options={"name": "--name", "owner_name": "--owner-name"},
    ),
    "database_edit": Sent(
        "PATCH",
        DATABASE,
        {"name": "database.name", "owner_name": "database.owner_name"},
        is_whole=True,
    ),
    "database_delete": Sent("DELETE", DATABASE, neonctl=f"databases delete {{name}} {OF_BRANCH}"),
    "snapshot_create": Sent(
        "POST",
        f"{BRANCH}/snapshot",
        {"name": "name", "lifetime": "expires_at"},
        neonctl=f"snapshots create {OF_BRANCH}",
        options={"name": "--name", "lifetime": "--expires-at"},
    ),
    "snapshot_edit": Sent(
        "PATCH",
        SNAPSHOT,
        {"name": "snapshot.name", "lifetime": "snapshot.expires_at"},
        {"snapshot": {"expires_at": None}},
        neonctl=f"snapshots update {{snapshot_id}} {OF_PROJECT}",
        options={"name": "--name", "lifetime": "--expires-at"},
        flags={"lifetime": ("", "--clear-expiration")},
    ),
    "snapshot_restore": Sent(
        "POST",
        f"{SNAPSHOT}/restore",
        {"target_id": "target_branch_id", "name": "name"},
        ticked={"target_id": ("finalize_restore", True)},
        neonctl=f"snapshots restore {{snapshot_id}} {OF_PROJECT}",
        options={"target_id": "--target-branch", "name": "--name"},
        flags={"target_id": ("--finalize", "")},
    ),
    "snapshot_delete": Sent(
        "DELETE", SNAPSHOT, neonctl=f"snapshots delete {{snapshot_id}} {OF_PROJECT}"
    ),
    "endpoint_create": Sent(
        "POST",
        f"{PROJECT}/endpoints",
        {"branch_id": "endpoint.branch_id", **SETTINGS},
        {"endpoint": {"type": "read_write"}},
        neonctl=f"branches add-compute [branch_id] {OF_PROJECT} --type read_write",
    ),
    "endpoint_suspend": Sent("POST", f"{ENDPOINT}/suspend"),
    "endpoint_restart": Sent("POST", f"{ENDPOINT}/restart"),
    "endpoint_disable": Sent("PATCH", ENDPOINT, always={"endpoint": {"disabled": True}}),
    "endpoint_reassign": Sent("PATCH", ENDPOINT, {"branch_id": "endpoint.branch_id"}),
    "endpoint_settings": Sent(
        "PATCH", ENDPOINT, {**SETTINGS, "pg_settings": "endpoint.settings.pg_settings"}
    ),
    "endpoint_delete": Sent("DELETE", ENDPOINT),
    "api_key_create": Sent(
        "POST",
        "/api_keys",
        {
            "name": "key_name",
            "project_id": "project_id",
            "read_only": "read_only",
            "expires_at": "expires_at",
        },
    ),
    "api_key_revoke": Sent("DELETE", "/api_keys/{key_id}"),
    "host_lost": Sent("POST", "/status/hosts/{host_id}/lost"),
    "host_remove": Sent("DELETE", "/status/hosts/{host_id}"),
    "webhook_create": Sent(
        "POST",
        "/webhooks",
        {
            "url": "webhook.url",
            "description": "webhook.description",
            "project_id": "webhook.project_id",
            "event_types": "webhook.event_types",
        },
        {"webhook": {"event_types": ["*"]}},
    ),
    "webhook_edit": Sent(
        "PATCH",
        "/webhooks/{webhook_id}",
        {
            "url": "webhook.url",
            "description": "webhook.description",
            "event_types": "webhook.event_types",
        },
        {"webhook": {"description": "", "event_types": ["*"]}},
        is_whole=True,
    ),
    "webhook_rotate": Sent("POST", "/webhooks/{webhook_id}/rotate_secret"),
    "webhook_delete": Sent("DELETE", "/webhooks/{webhook_id}"),
}

# The fields whose names differ from those of the API's attributes, by the attribute.
FIELDS_OF_ATTRIBUTES = {
    "role_name": "name",
    "database_name": "name",
    **{
        place.rpartition(".")[2]: name
        for sent in SENT.values()
        for name, place in sent.fields.items()
        if place.rpartition(".")[2] != name
    },
}
