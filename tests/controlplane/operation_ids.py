"""The ids of the API calls that Neon's SDKs know: those of the OpenAPI document in
`@neondatabase/api-client` 2.7.3, then those that only older documents have."""

BRANCH = "/projects/{project_id}/branches/{branch_id}/"
# Method, path and id. BRANCH/ stands for the path of a branch.
TABLE = """
    GET /api_keys listApiKeys
    POST /api_keys createApiKey
    DELETE /api_keys/{key_id} revokeApiKey
    GET /auth getAuthDetails
    GET /consumption_history/projects getConsumptionHistoryPerProject
    GET /consumption_history/v2/branches getConsumptionHistoryPerBranchV2
    GET /consumption_history/v2/projects getConsumptionHistoryPerProjectV2
    GET /organizations/{org_id} getOrganization
    GET /organizations/{org_id}/api_keys listOrgApiKeys
    POST /organizations/{org_id}/api_keys createOrgApiKey
    DELETE /organizations/{org_id}/api_keys/{key_id} revokeOrgApiKey
    DELETE /organizations/{org_id}/billing/spending_limit deleteOrganizationSpendingLimit
    GET /organizations/{org_id}/billing/spending_limit getOrganizationSpendingLimit
    PUT /organizations/{org_id}/billing/spending_limit setOrganizationSpendingLimit
    GET /organizations/{org_id}/invitations getOrganizationInvitations
    POST /organizations/{org_id}/invitations createOrganizationInvitations
    GET /organizations/{org_id}/members getOrganizationMembers
    DELETE /organizations/{org_id}/members/{member_id} removeOrganizationMember
    GET /organizations/{org_id}/members/{member_id} getOrganizationMember
    PATCH /organizations/{org_id}/members/{member_id} updateOrganizationMember
    GET /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints listOrganizationVPCEndpoints
    DELETE /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints/{vpc_endpoint_id} deleteOrganizationVPCEndpoint
    GET /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints/{vpc_endpoint_id} getOrganizationVPCEndpointDetails
    POST /organizations/{org_id}/vpc/region/{region_id}/vpc_endpoints/{vpc_endpoint_id} assignOrganizationVPCEndpoint
    GET /organizations/{org_id}/vpc/vpc_endpoints listOrganizationVPCEndpointsAllRegions
    POST /organizations/{source_org_id}/projects/transfer transferProjectsFromOrgToOrg
    GET /projects listProjects
    POST /projects createProject
    POST /projects/auth/create createNeonAuthIntegration
    POST /projects/auth/keys createNeonAuthProviderSDKKeys
    POST /projects/auth/transfer_ownership transferNeonAuthProviderProject
    POST /projects/auth/user createNeonAuthNewUser
    GET /projects/shared listSharedProjects
    DELETE /projects/{project_id} deleteProject
    GET /projects/{project_id} getProject
    PATCH /projects/{project_id} updateProject
    GET /projects/{project_id}/advisors getProjectAdvisorSecurityIssues
    DELETE /projects/{project_id}/auth/domains deleteNeonAuthDomainFromRedirectURIWhitelist
    GET /projects/{project_id}/auth/domains listNeonAuthRedirectURIWhitelistDomains
    POST /projects/{project_id}/auth/domains addNeonAuthDomainToRedirectURIWhitelist
    GET /projects/{project_id}/auth/email_server getNeonAuthEmailServer
    PATCH /projects/{project_id}/auth/email_server updateNeonAuthEmailServer
    DELETE /projects/{project_id}/auth/integration/{auth_provider} deleteNeonAuthIntegration
    GET /projects/{project_id}/auth/integrations listNeonAuthIntegrations
    GET /projects/{project_id}/auth/oauth_providers listNeonAuthOauthProviders
    POST /projects/{project_id}/auth/oauth_providers addNeonAuthOauthProvider
    DELETE /projects/{project_id}/auth/oauth_providers/{oauth_provider_id} deleteNeonAuthOauthProvider
    PATCH /projects/{project_id}/auth/oauth_providers/{oauth_provider_id} updateNeonAuthOauthProvider
    DELETE /projects/{project_id}/auth/users/{auth_user_id} deleteNeonAuthUser
    GET /projects/{project_id}/available_preload_libraries getAvailablePreloadLibraries
    POST /projects/{project_id}/branch_anonymized createProjectBranchAnonymized
    GET /projects/{project_id}/branches listProjectBranches
    POST /projects/{project_id}/branches createProjectBranch
    GET /projects/{project_id}/branches/count countProjectBranches
    DELETE /projects/{project_id}/branches/{branch_id} deleteProjectBranch
    GET /projects/{project_id}/branches/{branch_id} getProjectBranch
    PATCH /projects/{project_id}/branches/{branch_id} updateProjectBranch
    GET BRANCH/ai_gateway getProjectBranchAiGateway
    POST BRANCH/anonymize startAnonymization
    GET BRANCH/anonymized_status getAnonymizedBranchStatus
    DELETE BRANCH/auth disableNeonAuth
    GET BRANCH/auth getNeonAuth
    POST BRANCH/auth createNeonAuth
    GET BRANCH/auth/allow_localhost getNeonAuthAllowLocalhost
    PATCH BRANCH/auth/allow_localhost updateNeonAuthAllowLocalhost
    PATCH BRANCH/auth/config updateNeonAuthConfig
    DELETE BRANCH/auth/domains deleteBranchNeonAuthTrustedDomain
    GET BRANCH/auth/domains listBranchNeonAuthTrustedDomains
    POST BRANCH/auth/domains addBranchNeonAuthTrustedDomain
    GET BRANCH/auth/email_and_password getNeonAuthEmailAndPasswordConfig
    PATCH BRANCH/auth/email_and_password updateNeonAuthEmailAndPasswordConfig
    GET BRANCH/auth/email_provider getNeonAuthEmailProvider
    PATCH BRANCH/auth/email_provider updateNeonAuthEmailProvider
    GET BRANCH/auth/oauth_providers listBranchNeonAuthOauthProviders
    POST BRANCH/auth/oauth_providers addBranchNeonAuthOauthProvider
    DELETE BRANCH/auth/oauth_providers/{oauth_provider_id} deleteBranchNeonAuthOauthProvider
    PATCH BRANCH/auth/oauth_providers/{oauth_provider_id} updateBranchNeonAuthOauthProvider
    GET BRANCH/auth/plugins getNeonAuthPluginConfigs
    PATCH BRANCH/auth/plugins/magic-link updateNeonAuthMagicLinkPlugin
    PATCH BRANCH/auth/plugins/organization updateNeonAuthOrganizationPlugin
    GET BRANCH/auth/plugins/phone-number getNeonAuthPhoneNumberPlugin
    PATCH BRANCH/auth/plugins/phone-number updateNeonAuthPhoneNumberPlugin
    POST BRANCH/auth/send_test_email sendNeonAuthTestEmail
    POST BRANCH/auth/users createBranchNeonAuthNewUser
    DELETE BRANCH/auth/users/{auth_user_id} deleteBranchNeonAuthUser
    PUT BRANCH/auth/users/{auth_user_id}/role updateNeonAuthUserRole
    GET BRANCH/auth/webhooks getNeonAuthWebhookConfig
    PUT BRANCH/auth/webhooks updateNeonAuthWebhookConfig
    GET BRANCH/backup_schedule getSnapshotSchedule
    PUT BRANCH/backup_schedule setSnapshotSchedule
    GET BRANCH/buckets listProjectBranchBuckets
    POST BRANCH/buckets createProjectBranchBucket
    DELETE BRANCH/buckets/{bucket_name} deleteProjectBranchBucket
    GET BRANCH/buckets/{bucket_name}/objects listProjectBranchBucketObjects
    DELETE BRANCH/buckets/{bucket_name}/objects-by-prefix deleteProjectBranchBucketObjectsByPrefix
    DELETE BRANCH/buckets/{bucket_name}/objects/{object_key} deleteProjectBranchBucketObject
    GET BRANCH/buckets/{bucket_name}/objects/{object_key}/download getProjectBranchBucketObject
    POST BRANCH/buckets/{bucket_name}/objects/{object_key}/presign presignProjectBranchBucketObject
    GET BRANCH/compare_schema getProjectBranchSchemaComparison
    GET BRANCH/credentials listCredentials
    POST BRANCH/credentials createCredential
    DELETE BRANCH/credentials/{token_id} revokeCredential
    DELETE BRANCH/data-api/{database_name} deleteProjectBranchDataAPI
    GET BRANCH/data-api/{database_name} getProjectBranchDataAPI
    PATCH BRANCH/data-api/{database_name} updateProjectBranchDataAPI
    POST BRANCH/data-api/{database_name} createProjectBranchDataAPI
    GET BRANCH/databases listProjectBranchDatabases
    POST BRANCH/databases createProjectBranchDatabase
    DELETE BRANCH/databases/{database_name} deleteProjectBranchDatabase
    GET BRANCH/databases/{database_name} getProjectBranchDatabase
    PATCH BRANCH/databases/{database_name} updateProjectBranchDatabase
    GET BRANCH/endpoints listProjectBranchEndpoints
    POST BRANCH/finalize_restore finalizeRestoreBranch
    GET BRANCH/functions listProjectBranchFunctions
    DELETE BRANCH/functions/{slug} deleteProjectBranchFunction
    GET BRANCH/functions/{slug} getProjectBranchFunction
    PATCH BRANCH/functions/{slug} updateProjectBranchFunction
    POST BRANCH/functions/{slug}/deployments createProjectBranchFunctionDeployment
    GET BRANCH/masking_rules getMaskingRules
    PATCH BRANCH/masking_rules updateMaskingRules
    POST BRANCH/recover recoverProjectBranch
    POST BRANCH/restore restoreProjectBranch
    GET BRANCH/roles listProjectBranchRoles
    POST BRANCH/roles createProjectBranchRole
    DELETE BRANCH/roles/{role_name} deleteProjectBranchRole
    GET BRANCH/roles/{role_name} getProjectBranchRole
    POST BRANCH/roles/{role_name}/reset_password resetProjectBranchRolePassword
    GET BRANCH/roles/{role_name}/reveal_password getProjectBranchRolePassword
    GET BRANCH/schema getProjectBranchSchema
    POST BRANCH/set_as_default setDefaultProjectBranch
    POST BRANCH/snapshot createSnapshot
    GET BRANCH/storage getProjectBranchStorage
    GET /projects/{project_id}/connection_uri getConnectionURI
    GET /projects/{project_id}/endpoints listProjectEndpoints
    POST /projects/{project_id}/endpoints createProjectEndpoint
    DELETE /projects/{project_id}/endpoints/{endpoint_id} deleteProjectEndpoint
    GET /projects/{project_id}/endpoints/{endpoint_id} getProjectEndpoint
    PATCH /projects/{project_id}/endpoints/{endpoint_id} updateProjectEndpoint
    POST /projects/{project_id}/endpoints/{endpoint_id}/restart restartProjectEndpoint
    POST /projects/{project_id}/endpoints/{endpoint_id}/start startProjectEndpoint
    POST /projects/{project_id}/endpoints/{endpoint_id}/suspend suspendProjectEndpoint
    GET /projects/{project_id}/jwks getProjectJWKS
    POST /projects/{project_id}/jwks addProjectJWKS
    DELETE /projects/{project_id}/jwks/{jwks_id} deleteProjectJWKS
    GET /projects/{project_id}/operations listProjectOperations
    GET /projects/{project_id}/operations/{operation_id} getProjectOperation
    GET /projects/{project_id}/permissions listProjectPermissions
    POST /projects/{project_id}/permissions grantPermissionToProject
    DELETE /projects/{project_id}/permissions/{permission_id} revokePermissionFromProject
    POST /projects/{project_id}/recover recoverProject
    GET /projects/{project_id}/snapshots listSnapshots
    DELETE /projects/{project_id}/snapshots/{snapshot_id} deleteSnapshot
    PATCH /projects/{project_id}/snapshots/{snapshot_id} updateSnapshot
    POST /projects/{project_id}/snapshots/{snapshot_id}/restore restoreSnapshot
    POST /projects/{project_id}/transfer_requests createProjectTransferRequest
    PUT /projects/{project_id}/transfer_requests/{request_id} acceptProjectTransferRequest
    GET /projects/{project_id}/vpc_endpoints listProjectVPCEndpoints
    DELETE /projects/{project_id}/vpc_endpoints/{vpc_endpoint_id} deleteProjectVPCEndpoint
    POST /projects/{project_id}/vpc_endpoints/{vpc_endpoint_id} assignProjectVPCEndpoint
    GET /regions getActiveRegions
    GET /users/me getCurrentUserInfo
    GET /users/me/organizations getCurrentUserOrganizations
    POST /users/me/projects/transfer transferProjectsFromUserToOrg

    POST BRANCH/set_as_primary setPrimaryProjectBranch
    GET /consumption/projects listProjectsConsumption
    GET /consumption_history/account getConsumptionHistoryPerAccount
"""  # noqa: E501 # one call per line
OPERATION_IDS = {
    f"{method} {path.replace('BRANCH/', BRANCH)}": name
    for method, path, name in (line.split() for line in TABLE.splitlines() if line)
}
# Calls that only Perch has.
OWN = {
    "GET /batch",
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
