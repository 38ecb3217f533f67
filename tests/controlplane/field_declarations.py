"""What each field of a request does, or that it is refused: a line for every field of the API's
document, by route. `test_every_field.py` walks the document and holds each to its line.

A line is one of

    Answers(value)          sent, the answer holds it at the same place
    Answers(value, at="…")  or at another one, as "endpoints[].name" of its first endpoint
    Mirrors(value)          likewise, and the document says that it is kept and does no more
    Refused(value, "…")     4xx, whose words name the field and say what there is instead
    Shown("file::test")     its effect is read in the world, or in several answers, by that test
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.models import ATTRIBUTES, Attribute, Endpoint

# A value, or what gives it from the ids of the walk's own project: `project`, `branch`, `bare` (a
# branch without an endpoint), `organization`.
Value = Any | Callable[[Mapping[str, str]], Any]


@dataclass(frozen=True)
class Answers:
    value: Value
    at: str | None = None


@dataclass(frozen=True)
class Mirrors(Answers):
    pass


@dataclass(frozen=True)
class Refused:
    value: Value
    words: str = "is not offered by this server: "


@dataclass(frozen=True)
class Shown:
    # "test_file.py::test_name", of any suite.
    test: str


Declaration = Answers | Refused | Shown
Fields = dict[str, Declaration]


def within(prefix: str, fields: Mapping[str, Declaration]) -> Fields:
    """The fields of an object that several requests hold."""
    return {f"{prefix}{name}": declaration for name, declaration in fields.items()}


def default_of(attribute: Attribute) -> Any:
    column: Any = Endpoint._meta.get_field(attribute.name)
    return column.get_default()


def another_value(attribute: Attribute) -> Any:
    """A valid value that is not the default, unless only the default is valid."""
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
    """An endpoint's response has the value. What the value does is for a test of its own, which a
    line below may name instead."""
    kept_only = attribute.description.startswith("Stored")
    return (Mirrors if kept_only else Answers)(another_value(attribute), at=at)


SETTINGS = "test_project_settings.py"
POOLER = "test_pooler_settings.py"
LOGICAL = "test_logical_replication.py"
CONSUMPTION = "test_consumption.py"
PAGES = "test_branch_pages.py"
SCHEMA = "test_schema.py"
SNAPSHOTS = "test_snapshots.py"
RECOVERY = "test_recover_project.py"

PROJECT_SETTINGS: Fields = {
    "quota.active_time_seconds": Answers(1),
    "quota.compute_time_seconds": Answers(2),
    "quota.written_data_bytes": Answers(3),
    "quota.data_transfer_bytes": Answers(4),
    "quota.logical_size_bytes": Answers(5),
    "allowed_ips.ips": Answers(["192.0.2.0/24"]),
    "allowed_ips.protected_branches_only": Shown(
        f"{SETTINGS}::test_the_older_name_of_protected_branches_only"
    ),
    "allowed_ips.primary_branch_only": Shown(
        f"{SETTINGS}::test_the_older_name_of_protected_branches_only"
    ),
    "block_public_connections": Answers(True),
    "block_outbound_connections": Answers(True),
    "enable_logical_replication": Shown(
        f"{LOGICAL}::test_enabling_it_suspends_what_runs_and_holds_from_the_next_start_on"
    ),
    "block_vpc_connections": Refused(True),
    "hipaa": Refused(True),
    "audit_log_level": Refused("full"),
    "maintenance_window": Refused({"weekdays": [1], "start_time": "01:00", "end_time": "02:00"}),
    "preload_libraries": Refused({"enabled_libraries": ["x"]}),
}
ENDPOINT: Fields = {
    **{name: of_attribute(one) for name, one in ATTRIBUTES.items() if one.kind is not dict},
    "pooler_enabled": Shown(
        "test_pooling.py::test_pooler_enabled_sends_the_plain_host_through_the_pooler"
    ),
    "region_id": Answers("local"),
    "settings.pg_settings": Shown("test_configure_endpoint.py::test_it_works"),
    "settings.pgbouncer_settings": Shown(
        f"{POOLER}::test_a_change_is_an_operation_that_a_running_pooler_takes_in"
    ),
    "settings.preload_libraries": Refused({"use_defaults": True}),
    "suspend_timeout_seconds": Shown("test_idleness.py::test_an_endpoint_left_alone_sleeps"),
}
EVENTS: Fields = {
    "?limit": Shown("test_list_events.py::test_the_newest_come_first_page_by_page"),
    "?cursor": Shown("test_list_events.py::test_the_newest_come_first_page_by_page"),
    "?last_event_id": Shown("test_event_streams.py::test_who_comes_back_has_missed_nothing"),
    **{
        f"?{name}": Shown("test_list_events.py::test_each_filter")
        for name in ("actor", "branch_id", "endpoint_id", "operation_id", "since", "type", "until")
    },
}
API_KEY: Fields = {
    "key_name": Answers("named", at="name"),
    "project_id": Shown("test_key_limits.py::test_it_reaches_what_lies_in_the_project"),
    "read_only": Shown("test_key_limits.py::test_it_reads_everything_but_passwords"),
    "expires_at": Shown("test_key_limits.py::test_it_is_good_until_then_and_shown"),
}
BRANCH_END: Fields = {
    "archived": Refused(True),
    "expires_at": Shown("test_branch_expiry.py::test_it_is_set_changed_and_cleared"),
    "ttl_interval_seconds": Shown("test_branch_expiry.py::test_a_time_to_live"),
}
HISTORY: Fields = {
    "?from": Shown(f"{CONSUMPTION}::test_of_the_account"),
    "?to": Shown(f"{CONSUMPTION}::test_of_the_account"),
    "?granularity": Shown(f"{CONSUMPTION}::test_by_days_and_months"),
    "?org_id": Shown(f"{CONSUMPTION}::test_another_accounts_are_not_there"),
}
HISTORY_PAGES: Fields = {
    f"?{name}": Shown(f"{CONSUMPTION}::test_of_its_projects")
    for name in ("cursor", "limit", "project_ids")
}

DECLARED: dict[str, Fields] = {
    "GET /events": EVENTS,
    "GET /projects": {
        "?cursor": Shown("test_projects.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?limit": Shown("test_projects.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?search": Shown("test_projects.py::test_search_is_by_part_of_the_name_or_by_id"),
        "?org_id": Shown("test_organizations.py::test_it_works"),
        "?recoverable": Shown(f"{RECOVERY}::test_it_works"),
        "?timeout": Shown("test_organizations.py::test_a_list_that_takes_too_long"),
    },
    "GET /consumption/projects": {
        "?from": Shown(f"{CONSUMPTION}::test_several_periods_are_linked"),
        "?to": Shown(f"{CONSUMPTION}::test_several_periods_are_linked"),
        "?limit": Shown(f"{CONSUMPTION}::test_pages"),
        "?cursor": Shown(f"{CONSUMPTION}::test_pages"),
    },
    "GET /consumption_history/account": {
        **HISTORY,
        "?include_v1_metrics": Shown(f"{CONSUMPTION}::test_of_the_account"),
    },
    "GET /consumption_history/projects": {
        **HISTORY,
        **HISTORY_PAGES,
        "?include_v1_metrics": Shown(f"{CONSUMPTION}::test_of_its_projects"),
    },
    "GET /consumption_history/v2/projects": {
        **HISTORY,
        **HISTORY_PAGES,
        "?metrics": Shown(f"{CONSUMPTION}::test_metrics"),
    },
    "GET /projects/{project_id}/branches": {
        "?search": Shown(f"{PAGES}::test_search_and_count"),
        **{
            f"?{name}": Shown(f"{PAGES}::test_page_by_page_none_is_missing_and_none_comes_twice")
            for name in ("cursor", "limit", "sort_by", "sort_order")
        },
    },
    "GET /projects/{project_id}/branches/count": {
        "?search": Shown(f"{PAGES}::test_search_and_count"),
    },
    "GET /projects/{project_id}/branches/{branch_id}/schema": {
        "?db_name": Shown(f"{SCHEMA}::test_it_works"),
        "?format": Shown(f"{SCHEMA}::test_as_json"),
        "?lsn": Shown(f"{SCHEMA}::test_refusals"),
        "?timestamp": Shown(f"{SCHEMA}::test_refusals"),
    },
    "GET /projects/{project_id}/branches/{branch_id}/compare_schema": {
        "?db_name": Shown(f"{SCHEMA}::test_differences"),
        "?base_branch_id": Shown(f"{SCHEMA}::test_differences"),
        **{
            f"?{name}": Shown(f"{SCHEMA}::test_refusals")
            for name in ("lsn", "timestamp", "base_lsn", "base_timestamp")
        },
    },
    "GET /projects/{project_id}/connection_uri": {
        "?branch_id": Shown("test_connection_uri.py::test_of_another_branch"),
        "?endpoint_id": Shown("test_connection_uri.py::test_of_an_endpoint"),
        "?database_name": Shown("test_connection_uri.py::test_it_works"),
        "?role_name": Shown("test_connection_uri.py::test_it_works"),
        "?pooled": Shown("test_connection_uri.py::test_through_the_pooler"),
        "?password": Shown("test_connection_uri.py::test_without_its_password"),
    },
    "GET /projects/{project_id}/events": EVENTS,
    "GET /projects/{project_id}/operations": {
        "?cursor": Shown("test_operations.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?limit": Shown("test_operations.py::test_paging_loses_nothing_and_repeats_nothing"),
        "?since": Shown("test_operation_filters.py::test_times_are_from_and_before"),
        "?until": Shown("test_operation_filters.py::test_times_are_from_and_before"),
        **{
            f"?{name}": Shown("test_operation_filters.py::test_it_finds_what_is_of_the_kind")
            for name in ("action", "branch_id", "chain_id", "endpoint_id", "initiator", "status")
        },
    },
    "GET /projects/{project_id}/operations/{operation_id}": {
        "?wait": Shown("test_waiting_for_operations.py::test_it_answers_as_soon_as_it_has_ended"),
    },
    "GET /regions": {"?org_id": Shown("test_organizations.py::test_it_works")},
    "GET /webhooks": {"?project_id": Shown("test_webhooks.py::test_of_one_project")},
    "GET /webhooks/{webhook_id}/deliveries": {
        f"?{name}": Shown("test_webhook_sending.py::test_pages_of_deliveries")
        for name in ("cursor", "limit", "status")
    },
    "POST /projects": {
        "project.name": Answers("named"),
        "project.region_id": Answers("local"),
        "project.pg_version": Answers(18),
        "project.org_id": Answers(lambda ids: ids["organization"]),
        "project.provisioner": Mirrors("k8s-neonvm", at="endpoints[].provisioner"),
        "project.history_retention_seconds": Mirrors(60),
        "project.store_passwords": Shown(
            "test_roles.py::test_passwords_that_are_not_kept_cannot_be_revealed"
        ),
        "project.branch.name": Answers("trunk", at="branch.name"),
        "project.branch.role_name": Answers("ann", at="roles[].name"),
        "project.branch.database_name": Answers("stock", at="databases[].name"),
        "project.branch.annotations": Refused({"a": "b"}),
        "project.autoscaling_limit_max_cu": Answers(4, at="endpoints[].autoscaling_limit_max_cu"),
        "project.autoscaling_limit_min_cu": Answers(0.5, at="endpoints[].autoscaling_limit_min_cu"),
        **within(
            "project.default_endpoint_settings.",
            {
                **{
                    name: of_attribute(one, at=f"endpoints[].{name}")
                    for name, one in ATTRIBUTES.items()
                    if one.in_defaults
                },
                "pg_settings": Answers({"jit": "off"}, at="endpoints[].settings.pg_settings"),
                "pgbouncer_settings": Answers(
                    {"query_timeout": "9"}, at="endpoints[].settings.pgbouncer_settings"
                ),
            },
        ),
        **within("project.settings.", PROJECT_SETTINGS),
    },
    "PATCH /projects/{project_id}": {
        "project.name": Answers("named"),
        "project.pg_version": Refused(17, "the project stays with Postgres 18"),
        "project.store_passwords": Refused(False, "chosen when a project is created"),
        "project.org_id": Refused("org-x", "stays with the organization of its account"),
        "project.region_id": Answers("local"),
        "project.history_retention_seconds": Mirrors(60),
        **within(
            "project.default_endpoint_settings.",
            {
                "pgbouncer_settings": Shown(f"{POOLER}::test_it_holds_after_a_suspend_and_for_new"),
                "pg_settings": Shown(
                    "test_endpoint_rules.py::test_a_new_endpoint_has_its_projects"
                ),
                **{
                    name: Shown("test_endpoint_attributes.py::test_a_new_endpoint_has_its_projects")
                    for name, one in ATTRIBUTES.items()
                    if one.in_defaults
                },
            },
        ),
        **within("project.settings.", PROJECT_SETTINGS),
    },
    "POST /projects/{project_id}/branches": {
        "branch.name": Answers("named"),
        "branch.parent_id": Answers(lambda ids: ids["bare"]),
        "branch.protected": Answers(True),
        "branch.parent_lsn": Refused("0/1"),
        "branch.parent_timestamp": Refused("2020-01-01T00:00:00Z"),
        **within("branch.", BRANCH_END),
        "branch.init_source": Shown("test_schema_only.py::test_it_has_all_but_the_rows"),
        "annotation_value": Shown(f"{PAGES}::test_annotations"),
        **within("endpoints[].", ENDPOINT),
        "endpoints[].type": Refused("read_only"),
    },
    "PATCH /projects/{project_id}/branches/{branch_id}": {
        "branch.name": Answers("named"),
        "branch.protected": Shown("test_branches.py::test_a_protected_branch_stays"),
        **within("branch.", BRANCH_END),
    },
    "POST /projects/{project_id}/branches/{branch_id}/restore": {
        "source_branch_id": Shown("test_restore_branch.py::test_a_reset_from_the_parent"),
        "preserve_under_name": Shown("test_restore_branch.py::test_the_data_of_before_is"),
        "source_lsn": Refused("0/1"),
        "source_timestamp": Refused("2020-01-01T00:00:00Z"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/snapshot": {
        **{
            f"{mark}{name}": Shown(f"{SNAPSHOTS}::{test}")
            for mark in ("", "?")
            for name, test in (
                ("name", "test_it_works"),
                ("expires_at", "test_its_time_comes"),
                ("lsn", "test_refusals"),
                ("timestamp", "test_refusals"),
            )
        },
    },
    "PATCH /projects/{project_id}/snapshots/{snapshot_id}": {
        "snapshot.name": Shown(f"{SNAPSHOTS}::test_changes"),
        "snapshot.expires_at": Shown(f"{SNAPSHOTS}::test_changes"),
    },
    "POST /projects/{project_id}/snapshots/{snapshot_id}/restore": {
        "?name": Shown(f"{SNAPSHOTS}::test_it_works"),
        "name": Shown(f"{SNAPSHOTS}::test_it_works"),
        "target_branch_id": Shown(f"{SNAPSHOTS}::test_in_the_place_of_the_branch"),
        "finalize_restore": Shown(f"{SNAPSHOTS}::test_in_the_place_of_the_branch"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/databases": {
        "database.name": Answers("named"),
        "database.owner_name": Answers("neondb_owner"),
    },
    "PATCH /projects/{project_id}/branches/{branch_id}/databases/{database_name}": {
        "database.name": Shown("test_databases.py::test_a_renamed_database_keeps_its_data"),
        "database.owner_name": Shown("test_databases.py::test_a_database_changes_its_owner"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/roles": {
        "role.name": Answers("named"),
        "role.no_login": Shown("test_roles.py::test_a_role_without_login_is_turned_away"),
    },
    "POST /projects/{project_id}/endpoints": {
        "endpoint.branch_id": Answers(lambda ids: ids["bare"]),
        "endpoint.type": Refused("read_only"),
        **within("endpoint.", ENDPOINT),
    },
    "PATCH /projects/{project_id}/endpoints/{endpoint_id}": {
        "endpoint.branch_id": Answers(lambda ids: ids["bare"]),
        **within("endpoint.", ENDPOINT),
    },
    "POST /api_keys": API_KEY,
    "POST /organizations/{org_id}/api_keys": API_KEY,
    "POST /webhooks": {
        "webhook.url": Shown("test_webhooks.py::test_it_works"),
        "webhook.description": Shown("test_webhooks.py::test_it_works"),
        "webhook.event_types": Shown("test_webhooks.py::test_it_works"),
        "webhook.project_id": Shown("test_webhooks.py::test_of_one_project"),
        "webhook.enabled": Shown("test_webhooks.py::test_one_that_is_switched_off_sends_nothing"),
        "webhook.secret": Shown("test_webhooks.py::test_a_secret_of_ones_own"),
    },
    "PATCH /webhooks/{webhook_id}": {
        "webhook.url": Answers("https://hooks.example/other"),
        "webhook.description": Answers("what it is for"),
        "webhook.event_types": Answers(["branch.created"]),
        "webhook.project_id": Refused(
            lambda ids: ids["project"], "a webhook stays with its project; create another one"
        ),
        "webhook.enabled": Shown("test_webhooks.py::test_one_that_is_switched_off_sends_nothing"),
    },
    "POST /webhooks/{webhook_id}/rotate_secret": {
        "webhook.secret": Shown("test_webhooks.py::test_a_secret_of_ones_own"),
    },
}
