"""The console's addresses. What htmx swaps has an address of its own, ending in /live."""

from django.urls import path
from django.views.generic import RedirectView

from console.views import (
    activity,
    api_keys,
    branches,
    bundles,
    connecting,
    endpoint_changes,
    endpoints,
    operations,
    project_changes,
    projects,
    sign_in,
    steering,
    webhooks,
)

PROJECT = "projects/<slug:project_id>"
ENDPOINT = f"{PROJECT}/endpoints/<slug:endpoint_id>"
BRANCH = f"{PROJECT}/branches/<slug:branch_id>"
OPERATION = f"{PROJECT}/operations/<slug:operation_id>"
WEBHOOK = "webhooks/<slug:webhook_id>"
CHAIN = f"{PROJECT}/chains/<slug:chain_id>"

urlpatterns = [
    path("static/perch.css", bundles.show, {"name": "css"}),
    path("static/perch.js", bundles.show, {"name": "js"}),
    path("", projects.dashboard, name="dashboard"),
    path("live", projects.dashboard_live, name="dashboard_live"),
    path("sign-in", sign_in.sign_in, name="sign_in"),
    path("sign-out", sign_in.sign_out, name="sign_out"),
    path("api-keys", api_keys.index, name="api_keys"),
    path("api-keys/new", api_keys.create, name="api_key_create"),
    path("api-keys/<int:key_id>/revoke", api_keys.revoke, name="api_key_revoke"),
    path("new-project", project_changes.create, name="project_create"),
    path(PROJECT, projects.show, name="project"),
    path(f"{PROJECT}/switch", projects.switcher, name="project_switcher"),
    path(f"{PROJECT}/live", projects.live, name="project_live"),
    path(f"{PROJECT}/settings", project_changes.settings, name="project_settings"),
    path(f"{PROJECT}/rename", project_changes.rename, name="project_rename"),
    path(f"{PROJECT}/delete", project_changes.delete, name="project_delete"),
    path(f"{PROJECT}/new-endpoint", endpoints.create, name="endpoint_create"),
    path(ENDPOINT, endpoints.show, name="endpoint"),
    path(f"{ENDPOINT}/live", endpoints.live, name="endpoint_live"),
    path(f"{PROJECT}/connect", connecting.of_branch, name="project_connect"),
    path(f"{BRANCH}/connect", connecting.of_branch, name="branch_connect"),
    path(f"{ENDPOINT}/connect", connecting.show, name="endpoint_connect"),
    path(f"{ENDPOINT}/connection-string", connecting.string, name="endpoint_connection_string"),
    path(f"{ENDPOINT}/watch", connecting.watch, name="endpoint_watch"),
    *(
        path(f"{ENDPOINT}/{what}", endpoint_changes.change, {"what": what}, name=f"endpoint_{what}")
        for what in endpoint_changes.CHANGES
    ),
    *(
        path(
            f"{ENDPOINT}/{what}", endpoint_changes.confirm, {"what": what}, name=f"endpoint_{what}"
        )
        for what in endpoint_changes.CONFIRMED
    ),
    path(f"{ENDPOINT}/pg-settings", endpoints.pg_settings, name="endpoint_pg_settings"),
    path(f"{ENDPOINT}/reassign", endpoints.reassign, name="endpoint_reassign"),
    path(f"{ENDPOINT}/settings", endpoints.settings, name="endpoint_settings"),
    path(f"{ENDPOINT}/delete", endpoint_changes.delete, name="endpoint_delete"),
    path(f"{PROJECT}/branches", branches.index, name="branches"),
    path(f"{PROJECT}/branches-live", branches.index_live, name="branches_live"),
    path(f"{PROJECT}/new-branch", branches.create, name="branch_create"),
    path(f"{BRANCH}/rename", branches.rename, name="branch_rename"),
    path(f"{BRANCH}/set-default", branches.set_default, name="branch_set_default"),
    path(f"{BRANCH}/delete", branches.delete, name="branch_delete"),
    path(f"{PROJECT}/operations", operations.index, name="operations"),
    path(f"{PROJECT}/operations-live", operations.index_live, name="operations_live"),
    path(OPERATION, operations.show, name="operation"),
    path(f"{OPERATION}/live", operations.show_live, name="operation_live"),
    path(f"{OPERATION}/cancel", steering.cancel, name="operation_cancel"),
    path(f"{OPERATION}/retry", steering.retry, name="operation_retry"),
    path(f"{CHAIN}/cancel", steering.cancel_chain, name="chain_cancel"),
    path(f"{CHAIN}/retry", steering.retry_chain, name="chain_retry"),
    path("webhooks", webhooks.index, name="webhooks"),
    path("webhooks/new", webhooks.create, name="webhook_create"),
    path(WEBHOOK, webhooks.show, name="webhook"),
    path(f"{WEBHOOK}/deliveries-live", webhooks.deliveries, name="webhook_deliveries"),
    path(f"{WEBHOOK}/rotate", webhooks.rotate, name="webhook_rotate"),
    path(f"{WEBHOOK}/delete", webhooks.delete, name="webhook_delete"),
    path(f"{WEBHOOK}/enable", webhooks.enable, name="webhook_enable"),
    path(f"{WEBHOOK}/test", webhooks.test, name="webhook_test"),
    path(f"{WEBHOOK}/resend/<slug:delivery_id>", webhooks.resend, name="webhook_resend"),
    path("activity", activity.of_account, name="account_activity"),
    path(f"{PROJECT}/events", activity.of_project, name="project_activity"),
    # As it was called before.
    path(
        f"{PROJECT}/activity",
        RedirectView.as_view(pattern_name="project_activity", query_string=True, permanent=True),
    ),
]

handler400 = "console.views.problems.bad_request"
handler404 = "console.views.problems.not_found"
handler500 = "console.views.problems.server_error"
