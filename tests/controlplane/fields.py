"""The fields of each resource with their types, as in the public tables of fields."""

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.models import ATTRIBUTES, Attribute

Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    return isinstance(value, str)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def mapping(value: Any) -> bool:
    return isinstance(value, dict)


def timestamp(value: Any) -> bool:
    return bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value))


def an_uuid(value: Any) -> bool:
    return isinstance(value, str) and str(uuid.UUID(value)) == value


def like(pattern: str) -> Check:
    return lambda value: bool(re.fullmatch(pattern, value))


def one_of(*values: str) -> Check:
    return lambda value: value in values


project_id = like(r"[a-z]+-[a-z]+-\d{8}")
branch_id = like(r"br-[a-z]+-[a-z]+-\d{6}")
endpoint_id = like(r"ep-[a-z]+-[a-z]+-\d{6}")


def pg_settings(value: Any) -> bool:
    return all(text(name) and text(inner) for name, inner in value["pg_settings"].items())


def kind_of(attribute: Attribute) -> Check:
    if attribute.kind is dict:
        return pg_settings
    of_text = one_of(*attribute.values) if attribute.values else text
    return {bool: flag, int: integer, float: number, str: of_text}[attribute.kind]


ENDPOINT: Mapping[str, Check] = {
    **{one.name: kind_of(one) for one in ATTRIBUTES.values() if not one.is_optional},
    "host": like(r"ep-[a-z]+-[a-z]+-\d{6}\.localhost"),
    "id": endpoint_id,
    "project_id": project_id,
    "branch_id": branch_id,
    "region_id": text,
    "type": one_of("read_write"),
    "current_state": one_of("init", "active", "idle"),
    "creation_source": text,
    "created_at": timestamp,
    "updated_at": timestamp,
    "proxy_host": text,
}
ENDPOINT_AT_TIMES: Mapping[str, Check] = {
    **{one.name: kind_of(one) for one in ATTRIBUTES.values() if one.is_optional},
    "pending_state": one_of("active", "idle"),
    "last_active": timestamp,
    "started_at": timestamp,
    "suspended_at": timestamp,
}
OPERATION: Mapping[str, Check] = {
    "id": an_uuid,
    "chain_id": an_uuid,
    "initiator": lambda value: (
        value.keys() == {"type", "name", "api_key_id"}
        and text(value["type"])
        and text(value["name"])
        and (value["api_key_id"] is None or integer(value["api_key_id"]))
    ),
    "project_id": project_id,
    "action": one_of(
        "apply_config",
        "check_availability",
        "create_branch",
        "create_timeline",
        "delete_timeline",
        "move_project",
        "restore_from_store",
        "start_compute",
        "suspend_compute",
        "upgrade_project",
    ),
    "kind": text,
    "title": text,
    "status": one_of("scheduling", "running", "cancelling", "finished", "failed", "cancelled"),
    "failures_count": integer,
    "created_at": timestamp,
    "updated_at": timestamp,
    "total_duration_ms": integer,
}
OPERATION_AT_TIMES: Mapping[str, Check] = {
    "branch_id": branch_id,
    "endpoint_id": endpoint_id,
    "error": text,
    "retry_of": an_uuid,
    "not_run_because": an_uuid,
    "retry_at": timestamp,
    "superseded": flag,
}
BRANCH: Mapping[str, Check] = {
    "id": branch_id,
    "project_id": project_id,
    "name": text,
    "current_state": one_of("init", "ready", "resetting"),
    "state_changed_at": timestamp,
    "creation_source": text,
    "created_by": lambda value: (
        value.keys() == {"name", "image"} and all(map(text, value.values()))
    ),
    "init_source": one_of("parent-data", "schema-only"),
    "primary": flag,
    "default": flag,
    "protected": flag,
    "cpu_used_sec": integer,
    "compute_time_seconds": integer,
    "active_time_seconds": integer,
    "written_data_bytes": integer,
    "data_transfer_bytes": integer,
    "created_at": timestamp,
    "updated_at": timestamp,
}
BRANCH_AT_TIMES: Mapping[str, Check] = {
    "parent_id": branch_id,
    "parent_timestamp": timestamp,
    "pending_state": one_of("ready"),
    "logical_size": integer,
    "last_reset_at": timestamp,
    "expires_at": timestamp,
    "ttl_interval_seconds": integer,
    "masked_as": branch_id,
}
PROJECT_LISTED: Mapping[str, Check] = {
    "id": project_id,
    "platform_id": text,
    "region_id": text,
    "name": text,
    "provisioner": text,
    "default_endpoint_settings": mapping,
    "settings": mapping,
    "pg_version": integer,
    "locale": text,
    "proxy_host": text,
    "branch_logical_size_limit": integer,
    "branch_logical_size_limit_bytes": integer,
    "store_passwords": flag,
    "active_time": integer,
    "cpu_used_sec": integer,
    "synthetic_storage_size": integer,
    "quota_reset_at": timestamp,
    "creation_source": text,
    "created_at": timestamp,
    "updated_at": timestamp,
    "owner_id": text,
    "org_id": like(r"org-account-\d{8,}"),
}
PROJECT_LISTED_AT_TIMES: Mapping[str, Check] = {
    "compute_last_active_at": timestamp,
    "deleted_at": timestamp,
    "recoverable_until": timestamp,
}
NO_PROJECTS: Mapping[str, Any] = {"projects": [], "applications": {}, "integrations": {}}
PROJECT: Mapping[str, Check] = {
    **PROJECT_LISTED,
    "data_storage_bytes_hour": integer,
    "data_transfer_bytes": integer,
    "written_data_bytes": integer,
    "compute_time_seconds": integer,
    "active_time_seconds": integer,
    "history_retention_seconds": integer,
    "consumption_period_start": timestamp,
    "consumption_period_end": timestamp,
    "recovery_period_seconds": integer,
    "owner": mapping,
}
PROJECT_AT_TIMES = PROJECT_LISTED_AT_TIMES
SNAPSHOT: Mapping[str, Check] = {
    "id": like(r"snap-[a-z]+-[a-z]+-\d{6}"),
    "name": text,
    "slug": like(r"[a-z](?:[a-z0-9-]*[a-z0-9])?"),
    "created_at": timestamp,
    "manual": flag,
}
SNAPSHOT_AT_TIMES: Mapping[str, Check] = {
    "source_branch_id": branch_id,
    "timestamp": timestamp,
    "expires_at": timestamp,
    "full_size": integer,
}
ROLE: Mapping[str, Check] = {
    "branch_id": branch_id,
    "name": text,
    "protected": flag,
    "created_at": timestamp,
    "updated_at": timestamp,
}
ROLE_AT_TIMES: Mapping[str, Check] = {"password": text}
DATABASE: Mapping[str, Check] = {
    "id": integer,
    "branch_id": branch_id,
    "name": text,
    "owner_name": text,
    "created_at": timestamp,
    "updated_at": timestamp,
}


def assert_fields(
    resource: Any, always: Mapping[str, Check], at_times: Mapping[str, Check] | None = None
) -> None:
    """Check that every required field is present, that none is unknown, and that types match."""
    known = {**always, **(at_times or {})}
    assert not always.keys() - resource.keys(), "missing"
    assert not resource.keys() - known.keys(), "unknown"
    for name, value in resource.items():
        assert known[name](value), f"{name}: {value!r}"
