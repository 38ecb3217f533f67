"""Declares for every field of every request in the API's document what it does, or that it is
refused. `test_every_field.py` checks that no declaration is missing, and that each is true.

A declaration is one of

    Returned(value)          the response has the value that was sent, in the field of that name
    Returned(value, at="…")  the same, but in another field, such as "endpoints[].name", which means
                             the name of the first endpoint
    StoredOnly(value)        as Returned; and the document says that the value is only stored
    Refused(value, "…")      the response is 4xx; its message names the field and contains the text,
                             which says what to use instead
    CheckedBy("file::test")  the effect of the field is checked by that test
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.api.looked_for import EMPTY
from controlplane.models import ATTRIBUTES, Attribute, Endpoint

# The value to send, or a function that returns it. The function gets what the fixture `ids` of
# `test_every_field.py` returns, such as `bare`, the id of a branch without an endpoint.
Value = Any | Callable[[Mapping[str, str]], Any]


@dataclass(frozen=True)
class Returned:
    value: Value
    at: str | None = None


@dataclass(frozen=True)
class StoredOnly(Returned):
    pass


@dataclass(frozen=True)
class Refused:
    value: Value
    words: str = "is not offered by this server: "


@dataclass(frozen=True)
class CheckedBy:
    # "test_file.py::test_name", or the beginning of that; of any suite.
    test: str


Declaration = Returned | Refused | CheckedBy
Fields = dict[str, Declaration]


def prefixed(prefix: str, fields: Mapping[str, Declaration]) -> Fields:
    """Put the prefix before the name of each field, for an object that several requests contain."""
    return {f"{prefix}{name}": declaration for name, declaration in fields.items()}


def default_of(attribute: Attribute) -> Any:
    column: Any = Endpoint._meta.get_field(attribute.name)
    return column.get_default()


def another_value(attribute: Attribute) -> Any:
    """Return a valid value that is not the default; the default if no other value is valid."""
    default = default_of(attribute)
    least, most = attribute.least or 0, attribute.most
    offered: dict[Any, list[Any]] = {
        bool: [False, True],
        int: [least, least + 1, most],
        float: [least, least + 0.25, most],
        str: list(attribute.values) or ["named"],
        dict: [{"pg_settings": {"jit": "off"}}],
    }
    return next((value for value in offered[attribute.kind] if value != default), default)


def of_attribute(attribute: Attribute, *, at: str | None = None) -> Declaration:
    """Declare that the response contains the attribute. Where a test checks the attribute's effect,
    a declaration below names the test and replaces this one."""
    is_stored_only = attribute.description.startswith("Stored")
    return (StoredOnly if is_stored_only else Returned)(another_value(attribute), at=at)


SETTINGS = "test_project_settings.py"
POOLER = "test_pooler_settings.py"
LOGICAL = "test_logical_replication.py"
CONSUMPTION = "test_consumption.py"
PAGES = "test_branch_pages.py"
SCHEMA = "test_schema.py"
PAST_SCHEMA = "test_past_schemas.py"
PAST = "test_history.py"
SNAPSHOTS = "test_snapshots.py"
NOT_OFFERED = "test_not_offered.py"
RECOVERY = "test_recover_project.py"

PROJECT_SETTINGS: Fields = {
    "quota.active_time_seconds": Returned(1),
    "quota.compute_time_seconds": Returned(2),
    "quota.written_data_bytes": Returned(3),
    "quota.data_transfer_bytes": Returned(4),
    "quota.logical_size_bytes": Returned(5),
    "allowed_ips.ips": Returned(["192.0.2.0/24"]),
    "allowed_ips.protected_branches_only": CheckedBy(
        f"{SETTINGS}::test_the_older_name_of_protected_branches_only"
    ),
    "allowed_ips.primary_branch_only": CheckedBy(
        f"{SETTINGS}::test_the_older_name_of_protected_branches_only"
    ),
    "block_public_connections": Returned(True),
    "block_outbound_connections": Returned(True),
    "enable_logical_replication": CheckedBy(
        f"{LOGICAL}::test_enabling_it_suspends_active_endpoints_and_applies_from_the_next_start"
    ),
    "durability": Returned("host"),
    "block_vpc_connections": Refused(True),
    "hipaa": Refused(True),
    "audit_log_level": Refused("full"),
    "maintenance_window": Refused({"weekdays": [1], "start_time": "01:00", "end_time": "02:00"}),
    "preload_libraries": Refused({"enabled_libraries": ["x"]}),
}
ENDPOINT: Fields = {
    **{name: of_attribute(one) for name, one in ATTRIBUTES.items() if one.kind is not dict},
    "pooler_enabled": CheckedBy(
        "test_pooling.py::test_pooler_enabled_sends_the_plain_host_through_the_pooler"
    ),
    "region_id": Returned("local"),
    "settings.pg_settings": CheckedBy("test_configure_endpoint.py::test_it_works"),
    "settings.pgbouncer_settings": CheckedBy(
        f"{POOLER}::test_a_change_is_an_operation_that_a_running_pooler_applies"
    ),
    "settings.preload_libraries": Refused({"use_defaults": True}),
    "ignore_heartbeats": CheckedBy("test_idleness.py::test_heartbeats_keep_an_endpoint_active"),
    "suspend_timeout_seconds": CheckedBy("test_idleness.py::test_an_unused_endpoint_is_suspended"),
}
EVENTS: Fields = {
    "?limit": CheckedBy("test_list_events.py::test_the_newest_come_first_page_by_page"),
    "?cursor": CheckedBy("test_list_events.py::test_the_newest_come_first_page_by_page"),
    "?last_event_id": CheckedBy(
        "test_event_streams.py::test_a_reader_that_reconnects_misses_nothing"
    ),
    **{
        f"?{name}": CheckedBy("test_list_events.py::test_each_filter")
        for name in ("actor", "branch_id", "endpoint_id", "operation_id", "since", "type", "until")
    },
}
API_KEY: Fields = {
    "key_name": Returned("named", at="name"),
    "project_id": CheckedBy("test_key_limits.py::test_it_reaches_only_what_belongs"),
    "read_only": CheckedBy("test_key_limits.py::test_it_reads_everything_but_passwords"),
    "expires_at": CheckedBy(
        "test_key_limits.py::test_it_is_valid_until_its_expiry_which_is_returned"
    ),
}
BRANCH_END: Fields = {
    "archived": Refused(True),
    "expires_at": CheckedBy("test_branch_expiry.py::test_it_is_set_changed_and_cleared"),
    "ttl_interval_seconds": CheckedBy("test_branch_expiry.py::test_a_time_to_live"),
}
HISTORY: Fields = {
    "?from": CheckedBy(f"{CONSUMPTION}::test_of_the_account"),
    "?to": CheckedBy(f"{CONSUMPTION}::test_of_the_account"),
    "?granularity": CheckedBy(f"{CONSUMPTION}::test_by_days_and_months"),
    "?org_id": CheckedBy(f"{CONSUMPTION}::test_another_accounts_projects_are_not_listed"),
}
HISTORY_PAGES: Fields = {
    f"?{name}": CheckedBy(f"{CONSUMPTION}::test_of_its_projects")
    for name in ("cursor", "limit", "project_ids")
}

DECLARED: dict[str, Fields] = {
    "GET /events": EVENTS,
    "GET /projects": {
        "?cursor": CheckedBy("test_projects.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?limit": CheckedBy("test_projects.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?search": CheckedBy("test_projects.py::test_search_is_by_part_of_the_name_or_by_id"),
        "?org_id": CheckedBy("test_organizations.py::test_it_works"),
        "?recoverable": CheckedBy(f"{RECOVERY}::test_it_works"),
        "?timeout": CheckedBy("test_organizations.py::test_a_list_that_takes_too_long"),
    },
    "GET /projects/shared": {
        f"?{name}": CheckedBy(f"{NOT_OFFERED}::test_lists_of_what_this_server_never_has")
        for name in ("cursor", "limit", "search", "timeout")
    },
    **{
        f"GET {line.split('|')[0]}": {
            f"?{name}": CheckedBy(f"{NOT_OFFERED}::test_lists_of_what_this_server_never_has")
            for name in ("cursor", "limit")
        }
        for line in EMPTY.split()
        if line.startswith("/")
    },
    "GET /organizations/{org_id}/members": {
        f"?{name}": CheckedBy("test_organizations.py::test_pages_of_members")
        for name in ("cursor", "limit", "sort_by", "sort_order")
    },
    "DELETE /projects/{project_id}/branches/{branch_id}": {
        "?hard_delete": CheckedBy(f"{NOT_OFFERED}::test_deleted_branches_cannot_be_recovered"),
    },
    "GET /consumption/projects": {
        "?from": CheckedBy(f"{CONSUMPTION}::test_several_periods_are_linked"),
        "?to": CheckedBy(f"{CONSUMPTION}::test_several_periods_are_linked"),
        "?limit": CheckedBy(f"{CONSUMPTION}::test_pages"),
        "?cursor": CheckedBy(f"{CONSUMPTION}::test_pages"),
    },
    "GET /consumption_history/account": {
        **HISTORY,
        "?include_v1_metrics": CheckedBy(f"{CONSUMPTION}::test_of_the_account"),
        "?metrics": CheckedBy(f"{CONSUMPTION}::test_chosen_totals"),
    },
    "GET /consumption_history/projects": {
        **HISTORY,
        **HISTORY_PAGES,
        "?include_v1_metrics": CheckedBy(f"{CONSUMPTION}::test_of_its_projects"),
        "?metrics": CheckedBy(f"{CONSUMPTION}::test_chosen_totals"),
    },
    "GET /consumption_history/v2/projects": {
        **HISTORY,
        **HISTORY_PAGES,
        "?metrics": CheckedBy(f"{CONSUMPTION}::test_metrics"),
    },
    "GET /projects/{project_id}/branches": {
        "?include_deleted": CheckedBy(f"{NOT_OFFERED}::test_deleted_branches_cannot_be_recovered"),
        "?search": CheckedBy(f"{PAGES}::test_search_and_count"),
        **{
            f"?{name}": CheckedBy(f"{PAGES}::test_pages_miss_no_branch")
            for name in ("cursor", "limit", "sort_by", "sort_order")
        },
    },
    "GET /projects/{project_id}/branches/count": {
        "?search": CheckedBy(f"{PAGES}::test_search_and_count"),
    },
    "GET /projects/{project_id}/endpoints/{endpoint_id}/logs": {
        f"?{name}": CheckedBy("test_endpoint_logs.py::test_its_owner_reads_all")
        for name in ("limit", "source")
    },
    "GET /projects/{project_id}/endpoints/{endpoint_id}/metrics": {
        f"?{name}": CheckedBy("test_endpoint_metrics.py::test_times_and_steps")
        for name in ("from", "to", "step")
    },
    "GET /projects/{project_id}/metrics": {
        "?format": CheckedBy("test_endpoint_metrics.py::test_present_metrics"),
    },
    "GET /projects/{project_id}/branches/{branch_id}/schema": {
        "?db_name": CheckedBy(f"{SCHEMA}::test_it_works"),
        "?format": CheckedBy(f"{SCHEMA}::test_the_schema_as_json"),
        "?lsn": CheckedBy(f"{PAST_SCHEMA}::test_moments_that_are_not_there"),
        "?timestamp": CheckedBy(f"{PAST_SCHEMA}::test_the_schema_of_a_past_moment"),
    },
    "GET /projects/{project_id}/branches/{branch_id}/history/resolve": {
        "?lsn": CheckedBy(f"{PAST_SCHEMA}::test_a_moment_names"),
        "?timestamp": CheckedBy(f"{PAST_SCHEMA}::test_a_moment_names"),
    },
    "GET /projects/{project_id}/branches/{branch_id}/compare_schema": {
        "?db_name": CheckedBy(f"{SCHEMA}::test_differences"),
        "?base_branch_id": CheckedBy(f"{SCHEMA}::test_differences"),
        **{
            f"?{name}": CheckedBy(f"{PAST_SCHEMA}::test_the_schema_of_a_past_moment")
            for name in ("timestamp", "base_timestamp")
        },
        **{
            f"?{name}": CheckedBy(f"{PAST_SCHEMA}::test_positions_are_compared")
            for name in ("lsn", "base_lsn")
        },
    },
    "GET /projects/{project_id}/connection_uri": {
        "?branch_id": CheckedBy("test_connection_uri.py::test_for_another_branch"),
        "?endpoint_id": CheckedBy("test_connection_uri.py::test_for_an_endpoint"),
        "?database_name": CheckedBy("test_connection_uri.py::test_it_works"),
        "?role_name": CheckedBy("test_connection_uri.py::test_it_works"),
        "?pooled": CheckedBy("test_connection_uri.py::test_through_the_pooler"),
        "?password": CheckedBy("test_connection_uri.py::test_without_its_password"),
    },
    "GET /projects/{project_id}/events": EVENTS,
    "GET /projects/{project_id}/operations": {
        "?cursor": CheckedBy("test_operations.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?limit": CheckedBy("test_operations.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?since": CheckedBy(
            "test_operation_filters.py::test_times_are_inclusive_at_the_start_and_exclusive_at_the_end"
        ),
        "?until": CheckedBy(
            "test_operation_filters.py::test_times_are_inclusive_at_the_start_and_exclusive_at_the_end"
        ),
        **{
            f"?{name}": CheckedBy("test_operation_filters.py::test_a_filter_finds_exactly")
            for name in ("action", "branch_id", "chain_id", "endpoint_id", "initiator", "status")
        },
    },
    "GET /projects/{project_id}/operations/{operation_id}": {
        "?wait": CheckedBy(
            "test_waiting_for_operations.py::test_it_answers_as_soon_as_the_operation_has_ended"
        ),
    },
    "GET /regions": {"?org_id": CheckedBy("test_organizations.py::test_it_works")},
    "GET /webhooks": {"?project_id": CheckedBy("test_webhooks.py::test_a_webhook_of_one_project")},
    "GET /webhooks/{webhook_id}/deliveries": {
        f"?{name}": CheckedBy("test_webhook_sending.py::test_pages_of_deliveries")
        for name in ("cursor", "limit", "status")
    },
    "POST /projects": {
        "project.name": Returned("named"),
        "project.region_id": Returned("local"),
        "project.pg_version": Returned(18),
        "project.org_id": Returned(lambda ids: ids["organization"]),
        "project.provisioner": StoredOnly("k8s-neonvm", at="endpoints[].provisioner"),
        "project.history_retention_seconds": CheckedBy(f"{PAST}::test_without_a_retention"),
        "project.store_passwords": CheckedBy(
            "test_roles.py::test_passwords_that_are_not_stored_cannot_be_revealed"
        ),
        "project.branch.name": Returned("trunk", at="branch.name"),
        "project.branch.role_name": Returned("ann", at="roles[].name"),
        "project.branch.database_name": Returned("stock", at="databases[].name"),
        "project.branch.annotations": Refused({"a": "b"}),
        "project.autoscaling_limit_max_cu": Returned(4, at="endpoints[].autoscaling_limit_max_cu"),
        "project.autoscaling_limit_min_cu": Returned(
            0.5, at="endpoints[].autoscaling_limit_min_cu"
        ),
        **prefixed(
            "project.default_endpoint_settings.",
            {
                **{
                    name: of_attribute(one, at=f"endpoints[].{name}")
                    for name, one in ATTRIBUTES.items()
                    if one.in_defaults
                },
                "pg_settings": Returned({"jit": "off"}, at="endpoints[].settings.pg_settings"),
                "pgbouncer_settings": Returned(
                    {"query_timeout": "9"}, at="endpoints[].settings.pgbouncer_settings"
                ),
            },
        ),
        **prefixed("project.settings.", PROJECT_SETTINGS),
    },
    "PATCH /projects/{project_id}": {
        "project.name": Returned("named"),
        "project.pg_version": Refused(17, "the project stays with Postgres 18"),
        "project.store_passwords": Refused(False, "chosen when a project is created"),
        "project.org_id": Refused("org-x", "stays with the organization of its account"),
        "project.region_id": Returned("local"),
        "project.history_retention_seconds": CheckedBy(f"{PAST}::test_without_a_retention"),
        **prefixed(
            "project.default_endpoint_settings.",
            {
                "pgbouncer_settings": CheckedBy(f"{POOLER}::test_settings_apply_after_a_suspend"),
                "pg_settings": CheckedBy(
                    "test_endpoint_rules.py::test_a_new_endpoint_has_its_projects"
                ),
                **{
                    name: CheckedBy(
                        "test_endpoint_attributes.py::test_a_new_endpoint_has_its_projects"
                    )
                    for name, one in ATTRIBUTES.items()
                    if one.in_defaults
                },
            },
        ),
        **prefixed("project.settings.", PROJECT_SETTINGS),
    },
    "POST /projects/{project_id}/branches": {
        "branch.name": Returned("named"),
        "branch.parent_id": Returned(lambda ids: ids["bare"]),
        "branch.protected": Returned(True),
        "branch.parent_lsn": CheckedBy(f"{PAST}::test_a_branch_of_a_past_moment"),
        "branch.parent_timestamp": CheckedBy(f"{PAST}::test_a_branch_of_a_past_moment"),
        **prefixed("branch.", BRANCH_END),
        "branch.init_source": CheckedBy("test_schema_only.py::test_it_has_everything_but_the_rows"),
        "annotation_value": CheckedBy(f"{PAGES}::test_annotations"),
        **prefixed("endpoints[].", ENDPOINT),
        "endpoints[].type": Refused("read_only"),
    },
    "PATCH /projects/{project_id}/branches/{branch_id}": {
        "branch.name": Returned("named"),
        "branch.protected": CheckedBy(
            "test_branches.py::test_a_protected_branch_cannot_be_deleted"
        ),
        **prefixed("branch.", BRANCH_END),
    },
    "POST /projects/{project_id}/branches/{branch_id}/restore": {
        "source_branch_id": CheckedBy("test_restore_branch.py::test_a_reset_from_the_parent"),
        "preserve_under_name": CheckedBy("test_restore_branch.py::test_the_old_data_is"),
        "source_lsn": CheckedBy(f"{PAST}::test_a_branch_is_restored_to_a_position"),
        "source_timestamp": CheckedBy(f"{PAST}::test_a_branch_is_restored_from_its_own_past"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/time_travel": {
        "timestamp": CheckedBy("test_time_travel.py::test_a_past_moment_is_read"),
        "lsn": CheckedBy("test_time_travel.py::test_a_position"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/snapshot": {
        **{
            f"{mark}{name}": CheckedBy(f"{SNAPSHOTS}::{test}")
            for mark in ("", "?")
            for name, test in (
                ("name", "test_it_works"),
                ("slug", "test_slugs"),
                ("expires_at", "test_a_snapshot_is_deleted_when_it_expires"),
                ("lsn", "test_refusals"),
                ("timestamp", "test_refusals"),
            )
        },
    },
    "POST /projects/{project_id}/branches/{branch_id}/finalize_restore": {
        "name": CheckedBy(f"{SNAPSHOTS}::test_a_restore_in_two_steps"),
    },
    "PATCH /projects/{project_id}/snapshots/{snapshot_id}": {
        "snapshot.name": CheckedBy(f"{SNAPSHOTS}::test_changes"),
        "snapshot.expires_at": CheckedBy(f"{SNAPSHOTS}::test_changes"),
    },
    "POST /projects/{project_id}/snapshots/{snapshot_id}/restore": {
        "?name": CheckedBy(f"{SNAPSHOTS}::test_it_works"),
        "name": CheckedBy(f"{SNAPSHOTS}::test_it_works"),
        "target_branch_id": CheckedBy(f"{SNAPSHOTS}::test_restored_in_place_of_the_branchs_data"),
        "finalize_restore": CheckedBy(f"{SNAPSHOTS}::test_restored_in_place_of_the_branchs_data"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/databases": {
        "database.name": Returned("named"),
        "database.owner_name": Returned("neondb_owner"),
    },
    "PATCH /projects/{project_id}/branches/{branch_id}/databases/{database_name}": {
        "database.name": CheckedBy("test_databases.py::test_a_renamed_database_keeps_its_data"),
        "database.owner_name": CheckedBy("test_databases.py::test_a_database_changes_its_owner"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/roles": {
        "role.name": Returned("named"),
        "role.no_login": CheckedBy("test_roles.py::test_a_role_without_login_is_refused"),
    },
    "POST /projects/{project_id}/endpoints": {
        "endpoint.branch_id": Returned(lambda ids: ids["bare"]),
        "endpoint.type": Refused("read_only"),
        **prefixed("endpoint.", ENDPOINT),
    },
    "PATCH /projects/{project_id}/endpoints/{endpoint_id}": {
        "endpoint.branch_id": Returned(lambda ids: ids["bare"]),
        **prefixed("endpoint.", ENDPOINT),
    },
    "POST /api_keys": API_KEY,
    "POST /organizations/{org_id}/api_keys": API_KEY,
    "PATCH /status/hosts/{host_id}": {
        "host.draining": CheckedBy("test_status.py::test_an_operator_drains_and_resumes_a_host"),
    },
    "POST /projects/{project_id}/move": {
        "host_id": CheckedBy("test_move_project.py::test_an_operator_moves_a_project"),
    },
    "POST /accounts": {
        "account.name": CheckedBy("test_accounts.py::test_it_works"),
        "account.plan": CheckedBy("test_accounts.py::test_a_key_that_an_operator_makes"),
    },
    "PATCH /accounts/{account_id}": {
        "account.plan": CheckedBy("test_accounts.py::test_it_works"),
        "account.disabled": CheckedBy("test_accounts.py::test_it_works"),
    },
    "DELETE /accounts/{account_id}": {
        "?name": CheckedBy("test_accounts.py::test_it_works"),
    },
    "POST /accounts/{account_id}/api_keys": {
        name: CheckedBy("test_accounts.py::test_a_key_that_an_operator_makes") for name in API_KEY
    },
    "POST /webhooks": {
        "webhook.url": CheckedBy("test_webhooks.py::test_it_works"),
        "webhook.description": CheckedBy("test_webhooks.py::test_it_works"),
        "webhook.event_types": CheckedBy("test_webhooks.py::test_it_works"),
        "webhook.project_id": CheckedBy("test_webhooks.py::test_a_webhook_of_one_project"),
        "webhook.enabled": CheckedBy("test_webhooks.py::test_a_disabled_webhook_sends_nothing"),
        "webhook.secret": CheckedBy("test_webhooks.py::test_a_secret_chosen_by_the_caller"),
    },
    "PATCH /webhooks/{webhook_id}": {
        "webhook.url": Returned("https://hooks.example/other"),
        "webhook.description": Returned("what it is for"),
        "webhook.event_types": Returned(["branch.created"]),
        "webhook.project_id": Refused(
            lambda ids: ids["project"], "a webhook stays with its project; create another one"
        ),
        "webhook.enabled": CheckedBy("test_webhooks.py::test_a_disabled_webhook_sends_nothing"),
    },
    "POST /webhooks/{webhook_id}/rotate_secret": {
        "webhook.secret": CheckedBy("test_webhooks.py::test_a_secret_chosen_by_the_caller"),
    },
}
