"""The requests that the console's forms send, by the names of the forms' URLs.

`same_request` shows them for curl and neonctl. The forms themselves do not use this table.
"""

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
    # What the body has whatever is filled in, by where it goes.
    always: Mapping[str, Any] = field(default_factory=dict)
    # What else the body has if a field is not empty: where it goes, and its value.
    ticked: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # neonctl's command for the same, "" if it has none; names in brackets are fields. Its options
    # by field, which have the field's value. Its flags by field: the one for a field that is not
    # empty, and the one for an empty field.
    neonctl: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Whether the form sends unchanged values too, with PATCH.
    is_whole: bool = False

    @property
    def beyond_neonctl(self) -> list[str]:
        """The fields that neonctl's command cannot express."""
        told = {*self.options, *self.flags, *PLACE.findall(self.neonctl)}
        return [name for name in (*self.fields, *self.ticked) if name not in told]


SETTINGS = {one.field: f"endpoint.{one.attribute}" for one in ENDPOINT_SETTINGS}
OF_PROJECT = "--project-id {project_id}"
OF_BRANCH = f"{OF_PROJECT} --branch {{branch_id}}"
KEPT = {"preserve_under_name": "--preserve-under-name"}
SENT: Mapping[str, Sent] = {
    "project_create": Sent(
        "POST",
        "/projects",
        {"name": "project.name", "region_id": "project.region_id"},
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
        {"name": "key_name", "project_id": "project_id", "read_only": "read_only"},
    ),
    "api_key_revoke": Sent("DELETE", "/api_keys/{key_id}"),
    "webhook_create": Sent(
        "POST",
        "/webhooks",
        {"url": "webhook.url", "description": "webhook.description"},
        {"webhook": {"event_types": ["*"]}},
    ),
    "webhook_rotate": Sent("POST", "/webhooks/{webhook_id}/rotate_secret"),
    "webhook_delete": Sent("DELETE", "/webhooks/{webhook_id}"),
}
