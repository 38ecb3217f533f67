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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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


# The fields whose effect a test checks. Under the calls is a line for each test, named by the
# beginning of its name; "test_" is left out there and in the file's name. In paths, p stands for
# project_id, b for branch_id, e for endpoint_id and o for org_id.
CHECKED = """
GET /events, GET /projects/{p}/events
    ?limit ?cursor                           list_events::the_newest_come_first_page_by_page
    ?last_event_id                           event_streams::a_reader_that_reconnects_misses
    ?actor ?branch_id ?endpoint_id           list_events::each_filter
    ?operation_id ?since ?type ?until        list_events::each_filter
GET /projects
    ?cursor ?limit                           projects::paging_loses_nothing_and_repeats_nothing
    ?search                                  projects::search_is_by_part_of_the_name_or_by_id
    ?org_id                                  organizations::it_works
    ?recoverable                             recover_project::it_works
    ?timeout                                 organizations::a_list_that_takes_too_long
GET /projects/shared
    ?cursor ?limit ?search ?timeout          not_offered::lists_of_what_this_server_never_has
GET /organizations/{o}/members
    ?cursor ?limit ?sort_by ?sort_order      organizations::pages_of_members
DELETE /projects/{p}/branches/{b}
    ?hard_delete                             not_offered::deleted_branches_cannot_be_recovered
GET /consumption/projects
    ?from ?to                                consumption::several_periods_are_linked
    ?limit ?cursor                           consumption::pages
GET /consumption_history/account
    ?include_v1_metrics                      consumption::of_the_account
GET /consumption_history/projects
    ?include_v1_metrics                      consumption::of_its_projects
GET /consumption_history/account, GET /consumption_history/projects
    ?metrics                                 consumption::chosen_totals
    ?from ?to                                consumption::of_the_account
    ?granularity                             consumption::by_days_and_months
    ?org_id                                  consumption::another_accounts_projects_are_not_listed
GET /consumption_history/v2/projects
    ?metrics                                 consumption::metrics
    ?from ?to                                consumption::of_the_account
    ?granularity                             consumption::by_days_and_months
    ?org_id                                  consumption::another_accounts_projects_are_not_listed
GET /consumption_history/projects, GET /consumption_history/v2/projects
    ?cursor ?limit ?project_ids              consumption::of_its_projects
GET /projects/{p}/branches
    ?include_deleted                         not_offered::deleted_branches_cannot_be_recovered
    ?search                                  branch_pages::search_and_count
    ?cursor ?limit ?sort_by ?sort_order      branch_pages::pages_miss_no_branch
GET /projects/{p}/branches/count
    ?search                                  branch_pages::search_and_count
GET /projects/{p}/endpoints/{e}/logs
    ?limit ?source                           endpoint_logs::its_owner_reads_all
GET /projects/{p}/endpoints/{e}/metrics
    ?from ?to ?step                          endpoint_metrics::times_and_steps
GET /projects/{p}/metrics
    ?format                                  endpoint_metrics::present_metrics
GET /projects/{p}/branches/{b}/schema
    ?db_name                                 schema::it_works
    ?format                                  schema::the_schema_as_json
    ?lsn                                     past_moments::moments_that_are_not_there
    ?timestamp                               past_moments::the_schema_of_a_past_moment
GET /projects/{p}/branches/{b}/history/resolve
    ?lsn ?timestamp                          past_moments::a_moment_names
GET /projects/{p}/branches/{b}/compare_schema
    ?db_name ?base_branch_id                 schema::differences
    ?timestamp ?base_timestamp               past_moments::the_schema_of_a_past_moment
    ?lsn ?base_lsn                           past_moments::the_schema_of_a_past_moment
GET /projects/{p}/connection_uri
    ?branch_id                               connection_uri::for_another_branch
    ?endpoint_id                             connection_uri::for_an_endpoint
    ?database_name ?role_name                connection_uri::it_works
    ?pooled                                  connection_uri::through_the_pooler
    ?password                                connection_uri::without_its_password
GET /projects/{p}/operations
    ?cursor ?limit                           operations::paging_loses_nothing_and_repeats_nothing
    ?whole_chains                            request_kinds::a_page_of_whole_chains_has
    ?since ?until                            operation_filters::times_are_inclusive_at_the_start
    ?action ?branch_id ?chain_id             operation_filters::a_filter_finds_exactly
    ?endpoint_id ?initiator ?status          operation_filters::a_filter_finds_exactly
GET /projects/{p}/operations/{operation_id}
    ?wait                                    waiting_for_operations::it_answers_as_soon_as
GET /regions
    ?org_id                                  organizations::it_works
GET /webhooks
    ?project_id                              webhooks::a_webhook_of_one_project
GET /webhooks/{webhook_id}/deliveries
    ?cursor ?limit ?status                   webhook_sending::pages_of_deliveries
POST /projects
    project.history_retention_seconds        history::without_a_retention
    project.store_passwords                  roles::passwords_that_are_not_stored_cannot_be_revealed
PATCH /projects/{p}
    project.history_retention_seconds        history::without_a_retention
POST /projects/{p}/branches
    branch.parent_lsn                        history::a_branch_of_a_past_moment
    branch.parent_timestamp                  history::a_branch_of_a_past_moment
    branch.init_source                       schema_only::it_has_everything_but_the_rows
    annotation_value                         branch_pages::annotations
POST /projects/{p}/branches, PATCH /projects/{p}/branches/{b}
    branch.expires_at                        branch_expiry::it_is_set_changed_and_cleared
    branch.ttl_interval_seconds              branch_expiry::a_time_to_live
PATCH /projects/{p}/branches/{b}
    branch.protected                         branches::a_protected_branch_cannot_be_deleted
POST /projects/{p}/branch_anonymized
    masking_rules[].masking_function         masking::a_masked_branch_has_no_value
    masking_rules[].masking_value            masking::a_masked_branch_has_no_value
    start_anonymization                      masking::rules_may_be_set_before
    annotation_value                         masking::rules_may_be_set_before
PATCH /projects/{p}/branches/{b}/masking_rules
    masking_rules[].masking_function         masking::rules_may_be_set_before
    masking_rules[].masking_value            masking::rules_may_be_set_before
POST /projects/{p}/branch_anonymized, PATCH /projects/{p}/branches/{b}/masking_rules
    masking_rules[].database_name            masking::a_masked_branch_has_no_value
    masking_rules[].schema_name              masking::a_masked_branch_has_no_value
    masking_rules[].table_name               masking::a_masked_branch_has_no_value
    masking_rules[].column_name              masking::a_masked_branch_has_no_value
POST /projects/{p}/branches/{b}/restore
    source_branch_id                         restore_branch::a_reset_from_the_parent
    preserve_under_name                      restore_branch::the_old_data_is
    source_lsn                               history::a_branch_is_restored_to_a_position
    source_timestamp                         history::a_branch_is_restored_from_its_own_past
POST /projects/{p}/branches/{b}/time_travel
    timestamp                                past_moments::a_past_moment_is_read
    lsn                                      past_moments::a_position
POST /projects/{p}/branches/{b}/snapshot
    name ?name                               snapshots::it_works
    slug ?slug                               snapshots::slugs
    expires_at ?expires_at                   snapshots::a_snapshot_is_deleted_when_it_expires
    lsn timestamp ?lsn ?timestamp            snapshots::refusals
POST /projects/{p}/branches/{b}/finalize_restore
    name                                     snapshots::a_restore_in_two_steps
PATCH /projects/{p}/snapshots/{snapshot_id}
    snapshot.name snapshot.expires_at        snapshots::changes
POST /projects/{p}/snapshots/{snapshot_id}/restore
    name ?name                               snapshots::it_works
    target_branch_id finalize_restore        snapshots::restored_in_place_of_the_branchs_data
PATCH /projects/{p}/branches/{b}/databases/{database_name}
    database.name                            databases::a_renamed_database_keeps_its_data
    database.owner_name                      databases::a_database_changes_its_owner
POST /projects/{p}/branches/{b}/roles
    role.no_login                            roles::a_role_without_login_is_refused
POST /api_keys, POST /organizations/{o}/api_keys
    project_id                               key_limits::it_reaches_only_what_belongs
    read_only                                key_limits::it_reads_everything_but_passwords
    expires_at                               key_limits::it_is_valid_until_its_expiry
PATCH /status/hosts/{host_id}
    host.draining                            status::an_operator_drains_and_resumes_a_host
POST /projects/{p}/move
    host_id                                  move_project::an_operator_moves_a_project
POST /accounts
    account.name                             accounts::it_works
    account.plan                             accounts::a_key_that_an_operator_makes
PATCH /accounts/{account_id}
    account.plan account.disabled            accounts::it_works
DELETE /accounts/{account_id}
    ?name                                    accounts::it_works
POST /accounts/{account_id}/api_keys
    key_name project_id                      accounts::a_key_that_an_operator_makes
    read_only expires_at                     accounts::a_key_that_an_operator_makes
POST /webhooks
    webhook.url webhook.description          webhooks::it_works
    webhook.event_types                      webhooks::it_works
    webhook.project_id                       webhooks::a_webhook_of_one_project
POST /webhooks, PATCH /webhooks/{webhook_id}
    webhook.enabled                          webhooks::a_disabled_webhook_sends_nothing
POST /webhooks, POST /webhooks/{webhook_id}/rotate_secret
    webhook.secret                           webhooks::a_secret_chosen_by_the_caller
"""


def checked() -> Iterator[tuple[str, str, CheckedBy]]:
    """Yield each call, field and test of `CHECKED`."""
    calls: list[str] = []
    for line in CHECKED.splitlines():
        if line.startswith("    "):
            *fields, test = line.split()
            file, name = test.split("::")
            for call in calls:
                yield from (
                    (call, one, CheckedBy(f"test_{file}.py::test_{name}")) for one in fields
                )
        else:
            for letter, word in (
                ("p", "project"),
                ("b", "branch"),
                ("e", "endpoint"),
                ("o", "org"),
            ):
                line = line.replace(f"{{{letter}}}", f"{{{word}_id}}")
            calls = line.split(", ")


PROJECT_SETTINGS: Fields = {
    **{
        f"quota.{name}": Returned(number)
        for number, name in enumerate(
            "active_time_seconds compute_time_seconds written_data_bytes data_transfer_bytes"
            " logical_size_bytes".split(),
            start=1,
        )
    },
    "allowed_ips.ips": Returned(["192.0.2.0/24"]),
    **{
        f"allowed_ips.{name}_only": CheckedBy("test_project_settings.py::test_the_older_name_of")
        for name in ("protected_branches", "primary_branch")
    },
    "block_public_connections": Returned(True),
    "block_outbound_connections": Returned(True),
    "enable_logical_replication": CheckedBy("test_logical_replication.py::test_enabling_it"),
    "durability": Returned("host"),
    "masking_policy": Returned("keep"),
    "block_vpc_connections": Refused(True),
    "hipaa": Refused(True),
    "audit_log_level": Refused("full"),
    "maintenance_window": Refused({"weekdays": [1], "start_time": "01:00", "end_time": "02:00"}),
    "preload_libraries": Refused({"enabled_libraries": ["x"]}),
}

ENDPOINT: Fields = {
    **{name: of_attribute(one) for name, one in ATTRIBUTES.items() if one.kind is not dict},
    "pooler_enabled": CheckedBy("test_pooling.py::test_pooler_enabled_sends_the_plain_host"),
    "region_id": Returned("local"),
    "settings.pg_settings": CheckedBy("test_configure_endpoint.py::test_it_works"),
    "settings.pgbouncer_settings": CheckedBy("test_pooler_settings.py::test_a_change_is"),
    "settings.preload_libraries": Refused({"use_defaults": True}),
    "ignore_heartbeats": CheckedBy("test_idleness.py::test_heartbeats_keep_an_endpoint_active"),
    "suspend_timeout_seconds": CheckedBy("test_idleness.py::test_an_unused_endpoint_is_suspended"),
}

DEFAULTS = {name: one for name, one in ATTRIBUTES.items() if one.in_defaults}

DECLARED: dict[str, Fields] = {
    **{
        f"GET {line.split('|')[0]}": {
            f"?{name}": CheckedBy("test_not_offered.py::test_lists_of_what_this_server_never_has")
            for name in ("cursor", "limit")
        }
        for line in EMPTY.split()
        if line.startswith("/")
    },
    "POST /projects": {
        "project.name": Returned("named"),
        "project.region_id": Returned("local"),
        "project.pg_version": Returned(18),
        "project.org_id": Returned(lambda ids: ids["organization"]),
        "project.provisioner": StoredOnly("k8s-neonvm", at="endpoints[].provisioner"),
        "project.branch.name": Returned("trunk", at="branch.name"),
        "project.branch.role_name": Returned("ann", at="roles[].name"),
        "project.branch.database_name": Returned("stock", at="databases[].name"),
        "project.branch.annotations": Refused({"a": "b"}),
        **{
            f"project.{name}": Returned(size, at=f"endpoints[].{name}")
            for name, size in (("autoscaling_limit_max_cu", 4), ("autoscaling_limit_min_cu", 0.5))
        },
        **prefixed(
            "project.default_endpoint_settings.",
            {
                **{
                    name: of_attribute(one, at=f"endpoints[].{name}")
                    for name, one in DEFAULTS.items()
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
        **prefixed(
            "project.default_endpoint_settings.",
            {
                "pgbouncer_settings": CheckedBy("test_pooler_settings.py::test_settings_apply"),
                "pg_settings": CheckedBy("test_endpoint_rules.py::test_a_new_endpoint_has_its"),
                **dict.fromkeys(
                    DEFAULTS, CheckedBy("test_endpoint_attributes.py::test_a_new_endpoint_has_its")
                ),
            },
        ),
        **prefixed("project.settings.", PROJECT_SETTINGS),
    },
    "POST /projects/{project_id}/branches": {
        "branch.name": Returned("named"),
        "branch.parent_id": Returned(lambda ids: ids["bare"]),
        "branch.protected": Returned(True),
        "branch.archived": Refused(True),
        **prefixed("endpoints[].", ENDPOINT),
        "endpoints[].type": Refused("read_only"),
    },
    "PATCH /projects/{project_id}/branches/{branch_id}": {
        "branch.name": Returned("named"),
        "branch.archived": Refused(True),
    },
    "POST /projects/{project_id}/branches/{branch_id}/databases": {
        "database.name": Returned("named"),
        "database.owner_name": Returned("neondb_owner"),
    },
    "POST /projects/{project_id}/branches/{branch_id}/roles": {"role.name": Returned("named")},
    "POST /projects/{project_id}/endpoints": {
        "endpoint.branch_id": Returned(lambda ids: ids["bare"]),
        "endpoint.type": Refused("read_only"),
        **prefixed("endpoint.", ENDPOINT),
    },
    "PATCH /projects/{project_id}/endpoints/{endpoint_id}": {
        "endpoint.branch_id": Returned(lambda ids: ids["bare"]),
        **prefixed("endpoint.", ENDPOINT),
    },
    "POST /api_keys": {"key_name": Returned("named", at="name")},
    "POST /organizations/{org_id}/api_keys": {"key_name": Returned("named", at="name")},
    "PATCH /webhooks/{webhook_id}": {
        "webhook.url": Returned("https://hooks.example/other"),
        "webhook.description": Returned("what it is for"),
        "webhook.event_types": Returned(["branch.created"]),
        "webhook.project_id": Refused(
            lambda ids: ids["project"], "a webhook stays with its project; create another one"
        ),
    },
}
for _call, _field, _test in checked():
    DECLARED.setdefault(_call, {})[_field] = _test
# The branch that it creates is described as in the other call.
DECLARED["POST /projects/{project_id}/branch_anonymized"] |= {
    f"branch_create.{name}": replace(declared, at=declared.at or name)
    if isinstance(declared, Returned)
    else declared
    for name, declared in DECLARED["POST /projects/{project_id}/branches"].items()
}
