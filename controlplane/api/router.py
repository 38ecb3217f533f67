"""Combines the routers of all resources into the API that `controlplane.urls` serves."""

from controlplane.api import (
    accounts,
    api_keys,
    branches,
    databases,
    endpoints,
    events,
    looked_for,
    operations,
    organizations,
    projects,
    roles,
    schemas,
    snapshots,
    status,
    steering,
    users,
)
from controlplane.api.document.openapi import DescribedApi
from controlplane.api.http.auth import ApiKeyAuth
from controlplane.api.http.errors import install_error_handlers
from controlplane.fleet import api as hosts
from controlplane.history import api as history
from controlplane.usage import consumption_api, metrics_api
from controlplane.webhooks import api as webhooks

api = DescribedApi(
    title="Perch management API",
    version="2",
    auth=ApiKeyAuth(),
    docs_url=None,
    # `controlplane.api.document_views` serves the document.
    openapi_url=None,
)
install_error_handlers(api)
for resource in (
    *(
        projects,
        branches,
        history,
        schemas,
        snapshots,
        endpoints,
        metrics_api,
        operations,
        steering,
    ),
    *(events, roles, databases, api_keys, users, status, hosts, accounts, organizations),
    *(looked_for, consumption_api, webhooks),
):
    api.add_router("", resource.router)
