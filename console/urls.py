"""The console's addresses. Those of live regions are separate, and end with “live”."""

from django.urls import URLPattern, path
from django.views.generic import RedirectView

from console import bundles
from console.account import api_keys, palette, preferences, service_status, sign_in, webhooks
from console.branches import catalog, masking, moments, schema, snapshots
from console.branches import changes as branch_changes
from console.branches import views as branches
from console.endpoints import changes as endpoint_changes
from console.endpoints import connecting
from console.endpoints import views as endpoints
from console.events import views as events
from console.operations import run_views, timeline
from console.operations import views as operations
from console.pages.live_regions import PageAndRegion
from console.projects import dashboard
from console.projects import settings as project_settings
from console.projects import views as projects
from console.query import table_changes, table_imports, tables
from console.query import views as query

PROJECT = "projects/<slug:project_id>"
ENDPOINT = f"{PROJECT}/endpoints/<slug:endpoint_id>"
BRANCH = f"{PROJECT}/branches/<slug:branch_id>"
SNAPSHOT = f"{PROJECT}/snapshots/<slug:snapshot_id>"
OPERATION = f"{PROJECT}/operations/<slug:operation_id>"
WEBHOOK = "webhooks/<slug:webhook_id>"
CHAIN = f"{PROJECT}/chains/<slug:chain_id>"
RUN = f"{PROJECT}/runs/<slug:chain_id>"


def _live_page(
    route: str, views: PageAndRegion, name: str, *, live: str = "/live"
) -> list[URLPattern]:
    """Return the addresses of a page and of its live region."""
    page, region = views
    return [path(route, page, name=name), path(f"{route}{live}", region, name=f"{name}_live")]


urlpatterns = [
    *(path(f"static/perch.{name}", bundles.show, {"name": name}) for name in bundles.KINDS),
    *_live_page("", dashboard.dashboard, "dashboard", live="live"),
    path("sign-in", sign_in.sign_in, name="sign_in"),
    path("sign-in/link", sign_in.by_link, name="sign_in_link"),
    path("switch", sign_in.switch, name="switch"),
    path("sign-out", sign_in.sign_out, name="sign_out"),
    path("sign-out-everywhere", sign_in.sign_out_everywhere, name="sign_out_everywhere"),
    *_live_page("status", service_status.show, "status"),
    path("status/hosts/<str:host_id>/drain", service_status.drain, name="host_drain"),
    path("status/hosts/<str:host_id>/lost", service_status.declare_lost, name="host_lost"),
    path("status/hosts/<str:host_id>/remove", service_status.remove, name="host_remove"),
    path("go", palette.go, name="go"),
    path("shortcuts", palette.shortcuts, name="shortcuts"),
    path("preferences", preferences.choose, name="preferences"),
    path("api-keys", api_keys.index, name="api_keys"),
    path("api-keys/new", api_keys.create, name="api_key_create"),
    path("api-keys/<int:key_id>/revoke", api_keys.revoke, name="api_key_revoke"),
    path("deleted-projects", projects.deleted, name="deleted_projects"),
    path("new-project", projects.create, name="project_create"),
    *_live_page(PROJECT, projects.show, "project"),
    path(f"{PROJECT}/switch", dashboard.switcher, name="project_switcher"),
    path(f"{PROJECT}/settings", project_settings.show, name="project_settings"),
    *(
        path(f"{PROJECT}/{what}", project_settings.change, {"what": what}, name=f"project_{what}")
        for what in project_settings.CHANGES
    ),
    path(f"{PROJECT}/replication", project_settings.replication, name="project_replication"),
    path(f"{PROJECT}/delete", projects.delete, name="project_delete"),
    path(f"{PROJECT}/recover", projects.recover, name="project_recover"),
    path(f"{PROJECT}/new-endpoint", endpoint_changes.create, name="endpoint_create"),
    *_live_page(ENDPOINT, endpoints.show, "endpoint"),
    path(f"{ENDPOINT}/sessions", endpoints.sessions, name="endpoint_sessions"),
    *_live_page(f"{ENDPOINT}/monitoring", endpoints.monitoring, "endpoint_monitoring"),
    path(f"{PROJECT}/connect", connecting.through_branch, name="project_connect"),
    path(f"{BRANCH}/connect", connecting.through_branch, name="branch_connect"),
    path(f"{ENDPOINT}/connect", connecting.show, name="endpoint_connect"),
    path(f"{ENDPOINT}/connection-string", connecting.string, name="endpoint_connection_string"),
    *(
        path(f"{ENDPOINT}/{what}", endpoint_changes.change, {"what": what}, name=f"endpoint_{what}")
        for what in endpoint_changes.CHANGES
    ),
    *(
        path(
            f"{ENDPOINT}/{what}", endpoint_changes.confirm, {"what": what}, name=f"endpoint_{what}"
        )
        for what in endpoint_changes.TO_CONFIRM
    ),
    *_live_page(
        f"{ENDPOINT}/pg-settings", endpoints.pg_settings, "endpoint_pg_settings", live="-live"
    ),
    path(f"{ENDPOINT}/reassign", endpoint_changes.reassign, name="endpoint_reassign"),
    path(f"{ENDPOINT}/settings", endpoint_changes.settings, name="endpoint_settings"),
    path(f"{ENDPOINT}/delete", endpoint_changes.delete, name="endpoint_delete"),
    *_live_page(f"{PROJECT}/branches", branches.index, "branches", live="-live"),
    path(f"{PROJECT}/new-branch", branches.create, name="branch_create"),
    *_live_page(BRANCH, branches.show, "branch"),
    path(f"{BRANCH}/rename", branch_changes.rename, name="branch_rename"),
    path(f"{BRANCH}/expiry", branch_changes.expiry, name="branch_expiry"),
    path(f"{BRANCH}/protection", branch_changes.protection, name="branch_protection"),
    path(f"{BRANCH}/set-default", branch_changes.set_default, name="branch_set_default"),
    path(f"{BRANCH}/reset", branch_changes.reset, name="branch_reset"),
    path(f"{BRANCH}/restore", branch_changes.restore, name="branch_restore"),
    path(f"{BRANCH}/delete", branch_changes.delete, name="branch_delete"),
    path(f"{BRANCH}/schema", schema.compare, name="branch_schema"),
    path(f"{BRANCH}/mask", masking.mask, name="branch_mask"),
    path(f"{BRANCH}/attestation", masking.attestation, name="branch_attestation"),
    path(f"{BRANCH}/history", moments.show, name="branch_history"),
    path(f"{BRANCH}/history/new-branch", moments.create, name="branch_history_create"),
    path(f"{BRANCH}/history/query", moments.query, name="branch_history_query"),
    path(f"{BRANCH}/history/restore", moments.restore, name="branch_history_restore"),
    path(f"{BRANCH}/new-role", catalog.create_role, name="role_create"),
    path(f"{BRANCH}/role/password", catalog.reveal_password, name="role_password"),
    path(f"{BRANCH}/role/new-password", catalog.reset_password, name="role_reset"),
    path(f"{BRANCH}/role/delete", catalog.delete_role, name="role_delete"),
    path(f"{BRANCH}/new-database", catalog.create_database, name="database_create"),
    path(f"{BRANCH}/database/edit", catalog.edit_database, name="database_edit"),
    path(f"{BRANCH}/database/delete", catalog.delete_database, name="database_delete"),
    path(f"{BRANCH}/new-snapshot", snapshots.create, name="snapshot_create"),
    path(f"{SNAPSHOT}/edit", snapshots.edit, name="snapshot_edit"),
    path(f"{SNAPSHOT}/restore", snapshots.restore, name="snapshot_restore"),
    path(f"{SNAPSHOT}/delete", snapshots.delete, name="snapshot_delete"),
    *_live_page(f"{PROJECT}/operations", operations.index, "operations", live="-live"),
    *_live_page(f"{PROJECT}/timeline", timeline.show, "timeline", live="-live"),
    *_live_page(RUN, run_views.show, "run"),
    path(OPERATION, run_views.show_operation, name="operation"),
    path(f"{OPERATION}/live", run_views.operation_live, name="operation_live"),
    path(f"{OPERATION}/cancel", run_views.cancel, name="operation_cancel"),
    path(f"{OPERATION}/retry", run_views.retry, name="operation_retry"),
    path(f"{CHAIN}/cancel", run_views.cancel_chain, name="chain_cancel"),
    path(f"{CHAIN}/retry", run_views.retry, name="chain_retry"),
    path(f"{PROJECT}/query", query.show, name="query"),
    path(f"{PROJECT}/query/cancel", query.cancel, name="query_cancel"),
    path(f"{PROJECT}/tables", tables.index, name="tables"),
    path(f"{PROJECT}/tables/row", table_changes.edit, name="table_row"),
    path(f"{PROJECT}/tables/value", table_changes.value, name="table_value"),
    path(f"{PROJECT}/tables/new-row", table_changes.add, name="table_row_add"),
    path(f"{PROJECT}/tables/import", table_imports.import_csv, name="table_import"),
    path(f"{PROJECT}/tables/export", tables.export, name="table_export"),
    *_live_page("webhooks", webhooks.index, "webhooks", live="-live"),
    path("webhooks/new", webhooks.create, name="webhook_create"),
    *_live_page(WEBHOOK, webhooks.show, "webhook"),
    path(f"{WEBHOOK}/edit", webhooks.edit, name="webhook_edit"),
    path(f"{WEBHOOK}/rotate", webhooks.rotate, name="webhook_rotate"),
    path(f"{WEBHOOK}/delete", webhooks.delete, name="webhook_delete"),
    path(f"{WEBHOOK}/enable", webhooks.enable, name="webhook_enable"),
    path(f"{WEBHOOK}/test", webhooks.test, name="webhook_test"),
    path(f"{WEBHOOK}/resend/<slug:delivery_id>", webhooks.resend, name="webhook_resend"),
    *_live_page("activity", events.of_account, "account_activity", live="-live"),
    *_live_page(f"{PROJECT}/events", events.of_project, "project_activity", live="-live"),
    # The previous address of that page.
    path(
        f"{PROJECT}/activity",
        RedirectView.as_view(pattern_name="project_activity", query_string=True, permanent=True),
    ),
]

handler400 = "console.pages.problems.bad_request"
handler404 = "console.pages.problems.not_found"
handler500 = "console.pages.problems.server_error"
