"""The ids of the API calls that Neon's SDKs know: those of its newest document, then those that
only older documents have."""

from tests.support.neon_document import read_operations

BRANCH = "/projects/{project_id}/branches/{branch_id}"
OPERATION_IDS = {
    **{str(one): one.id for one in read_operations()},
    f"POST {BRANCH}/set_as_primary": "setPrimaryProjectBranch",
    "GET /consumption/projects": "listProjectsConsumption",
    "GET /consumption_history/account": "getConsumptionHistoryPerAccount",
}
# Calls that only Perch has.
OWN = {
    "GET /accounts",
    "POST /accounts",
    "GET /accounts/{account_id}",
    "PATCH /accounts/{account_id}",
    "DELETE /accounts/{account_id}",
    "POST /accounts/{account_id}/recover",
    "GET /accounts/{account_id}/api_keys",
    "POST /accounts/{account_id}/api_keys",
    "DELETE /accounts/{account_id}/api_keys/{key_id}",
    "GET /projects/{project_id}/branches/{branch_id}/history",
    "GET /projects/{project_id}/branches/{branch_id}/history/resolve",
    "POST /projects/{project_id}/branches/{branch_id}/time_travel",
    "GET /projects/states",
    "GET /projects/{project_id}/limits",
    "POST /projects/{project_id}/move",
    "GET /projects/{project_id}/endpoints/{endpoint_id}/pg_settings",
    "GET /projects/{project_id}/endpoints/{endpoint_id}/logs",
    "GET /projects/{project_id}/endpoints/{endpoint_id}/sessions",
    "GET /projects/{project_id}/endpoints/{endpoint_id}/metrics",
    "GET /projects/{project_id}/metrics",
    "POST /projects/{project_id}/operations/{operation_id}/cancel",
    "POST /projects/{project_id}/operations/{operation_id}/retry",
    "POST /projects/{project_id}/chains/{chain_id}/cancel",
    "POST /projects/{project_id}/chains/{chain_id}/retry",
    "GET /events",
    "GET /mark",
    "GET /projects/{project_id}/mark",
    "GET /projects/{project_id}/events",
    "POST /projects/{project_id}/branches/{branch_id}/roles/{role_name}/reveal_password",
    "GET /status",
    "GET /status/hosts",
    "PATCH /status/hosts/{host_id}",
    "DELETE /status/hosts/{host_id}",
    "POST /status/hosts/{host_id}/lost",
    "POST /webhooks",
    "GET /webhooks",
    "GET /webhooks/{webhook_id}",
    "PATCH /webhooks/{webhook_id}",
    "DELETE /webhooks/{webhook_id}",
    "POST /webhooks/{webhook_id}/rotate_secret",
    "POST /webhooks/{webhook_id}/test",
    "GET /webhooks/{webhook_id}/deliveries",
    "GET /webhooks/{webhook_id}/deliveries/{delivery_id}",
    "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/resend",
}
