"""The paths of Neon's API, whether this server has a route for them or not. A request for a path
without a route is answered with "not offered" instead of "not found", which would mean that the
resource is missing.

This list is used only for requests that no route serves. So a path need not be removed from it
when a route is built.
"""

import functools
import re

from django.http import HttpRequest

PREFIX = "/api/v2"
# Characters of a path that an error message contains at most.
LONGEST_PATH = 200
BRANCH = "/projects/{project_id}/branches/{branch_id}"
# Each line has the methods and the template of a path. `BRANCH/` stands for the path BRANCH.
KNOWN = """
    GET,POST /api_keys
    DELETE /api_keys/{key_id}
    GET /auth
    GET,PATCH /billing
    GET /branches
    GET /consumption/projects
    GET /consumption_history/account
    GET /consumption_history/projects
    GET /consumption_history/v2/branches
    GET /consumption_history/v2/projects
    GET,POST /organizations
    DELETE,GET,PATCH /organizations/{org_id}
    GET,POST /organizations/{org_id}/api_keys
    DELETE /organizations/{org_id}/api_keys/{key_id}
    GET /organizations/{org_id}/billing
    DELETE,GET,PUT /organizations/{org_id}/billing/spending_limit
    GET,POST /organizations/{org_id}/invitations
    DELETE /organizations/{org_id}/invitations/{invitation_id}
    GET /organizations/{org_id}/members
    DELETE,GET,PATCH /organizations/{org_id}/members/{member_id}
    GET /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints
    DELETE,GET,POST /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints/{vpc_endpoint_id}
    GET /organizations/{org_id}/vpc/vpc_endpoints
    POST /organizations/{source_org_id}/projects/transfer
    GET,POST /projects
    POST /projects/auth/create
    POST /projects/auth/keys
    POST /projects/auth/transfer_ownership
    POST /projects/auth/user
    GET /projects/shared
    DELETE,GET,PATCH /projects/{project_id}
    GET /projects/{project_id}/advisors
    DELETE,GET,POST /projects/{project_id}/auth/domains
    GET,PATCH /projects/{project_id}/auth/email_server
    DELETE /projects/{project_id}/auth/integration/{auth_provider}
    GET /projects/{project_id}/auth/integrations
    GET,POST /projects/{project_id}/auth/oauth_providers
    DELETE,PATCH /projects/{project_id}/auth/oauth_providers/{oauth_provider_id}
    DELETE /projects/{project_id}/auth/users/{auth_user_id}
    GET /projects/{project_id}/available_preload_libraries
    POST /projects/{project_id}/branch_anonymized
    GET,POST /projects/{project_id}/branches
    GET /projects/{project_id}/branches/count
    DELETE,GET,PATCH /projects/{project_id}/branches/{branch_id}
    GET BRANCH/ai_gateway
    POST BRANCH/anonymize
    GET,POST BRANCH/anonymized
    GET BRANCH/anonymized_status
    DELETE,GET,POST BRANCH/auth
    GET,PATCH BRANCH/auth/allow_localhost
    PATCH BRANCH/auth/config
    DELETE,GET,POST BRANCH/auth/domains
    GET,PATCH BRANCH/auth/email_and_password
    GET,PATCH BRANCH/auth/email_provider
    GET,POST BRANCH/auth/oauth_providers
    DELETE,PATCH BRANCH/auth/oauth_providers/{oauth_provider_id}
    GET BRANCH/auth/plugins
    PATCH BRANCH/auth/plugins/magic-link
    PATCH BRANCH/auth/plugins/organization
    GET,PATCH BRANCH/auth/plugins/phone-number
    POST BRANCH/auth/send_test_email
    POST BRANCH/auth/users
    DELETE BRANCH/auth/users/{auth_user_id}
    PUT BRANCH/auth/users/{auth_user_id}/role
    GET,PUT BRANCH/auth/webhooks
    GET,PUT BRANCH/backup_schedule
    GET,POST BRANCH/buckets
    DELETE BRANCH/buckets/{bucket_name}
    GET BRANCH/buckets/{bucket_name}/objects
    DELETE BRANCH/buckets/{bucket_name}/objects-by-prefix
    DELETE BRANCH/buckets/{bucket_name}/objects/{object_key}
    GET BRANCH/buckets/{bucket_name}/objects/{object_key}/download
    POST BRANCH/buckets/{bucket_name}/objects/{object_key}/presign
    GET BRANCH/compare_schema
    GET,POST BRANCH/credentials
    DELETE BRANCH/credentials/{token_id}
    DELETE,GET,PATCH,POST BRANCH/data-api/{database_name}
    GET,POST BRANCH/databases
    DELETE,GET,PATCH BRANCH/databases/{database_name}
    GET BRANCH/endpoints
    POST BRANCH/finalize_restore
    GET BRANCH/functions
    DELETE,GET,PATCH BRANCH/functions/{slug}
    POST BRANCH/functions/{slug}/deployments
    POST BRANCH/logs/query
    GET,PATCH BRANCH/masking_rules
    POST BRANCH/recover
    POST BRANCH/reset
    POST BRANCH/restore
    GET,POST BRANCH/roles
    DELETE,GET BRANCH/roles/{role_name}
    POST BRANCH/roles/{role_name}/reset_password
    GET BRANCH/roles/{role_name}/reveal_password
    GET BRANCH/schema
    POST BRANCH/set_as_default
    POST BRANCH/set_as_primary
    POST BRANCH/snapshot
    GET BRANCH/storage
    GET,POST BRANCH/triggers
    DELETE,GET,PATCH BRANCH/triggers/{trigger_id}
    GET /projects/{project_id}/connection_uri
    GET,POST /projects/{project_id}/endpoints
    DELETE,GET,PATCH /projects/{project_id}/endpoints/{endpoint_id}
    POST /projects/{project_id}/endpoints/{endpoint_id}/passwordless_auth
    POST /projects/{project_id}/endpoints/{endpoint_id}/restart
    POST /projects/{project_id}/endpoints/{endpoint_id}/start
    POST /projects/{project_id}/endpoints/{endpoint_id}/suspend
    GET,POST /projects/{project_id}/jwks
    DELETE /projects/{project_id}/jwks/{jwks_id}
    GET /projects/{project_id}/limits
    GET /projects/{project_id}/operations
    GET /projects/{project_id}/operations/{operation_id}
    GET,POST /projects/{project_id}/permissions
    DELETE /projects/{project_id}/permissions/{permission_id}
    POST /projects/{project_id}/query
    POST /projects/{project_id}/recover
    GET /projects/{project_id}/snapshots
    DELETE,PATCH /projects/{project_id}/snapshots/{snapshot_id}
    POST /projects/{project_id}/snapshots/{snapshot_id}/restore
    POST /projects/{project_id}/transfer
    POST /projects/{project_id}/transfer_requests
    PUT /projects/{project_id}/transfer_requests/{request_id}
    GET /projects/{project_id}/vpc_endpoints
    DELETE,POST /projects/{project_id}/vpc_endpoints/{vpc_endpoint_id}
    GET /regions
    DELETE,GET,PATCH /users/me
    GET /users/me/organizations
    POST /users/me/projects/transfer
"""


def known_route(method: str, path: str) -> str | None:
    """The method and template, such as "GET /projects/{project_id}/jwks", that a path (without
    PREFIX) matches; None if Neon's API has no such path."""
    for methods, template, pattern in _known():
        if method in methods and pattern.fullmatch(path):
            return f"{method} {template}"
    return None


def words_of_missing(request: HttpRequest) -> tuple[str, str]:
    """The code and the message for a request that no route serves."""
    method, path = str(request.method), request.path
    if not path.startswith(PREFIX):
        return "", f"not found: {path[:LONGEST_PATH]}"
    below = path.removeprefix(PREFIX)
    if known := known_route(method, below):
        # neonctl recognizes the words "is not available", and continues without the feature.
        return "NOT_OFFERED", f"not offered by this server: {known} is not available here"
    return "", f"not found: there is no {method[:16]} {below[:LONGEST_PATH] or '/'} in this API"


@functools.cache
def _known() -> list[tuple[tuple[str, ...], str, re.Pattern[str]]]:
    found = []
    for line in KNOWN.split("\n"):
        if not line.strip():
            continue
        methods, template = line.replace(" BRANCH/", f" {BRANCH}/").split()
        # A name in braces stands for one segment of the path, with any content.
        parts = re.split(r"\{\w+\}", template)
        pattern = "[^/]+".join(map(re.escape, parts))
        found.append((tuple(methods.split(",")), template, re.compile(pattern)))
    # Templates with fewer parameters come first: "/projects/shared" before
    # "/projects/{project_id}".
    return sorted(found, key=lambda one: one[1].count("{"))
