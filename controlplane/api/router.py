"""Combines the routers of all resources into the API that `controlplane.urls` serves."""

from controlplane.api import (
    accounts,
    api_keys,
    branches,
    consumption,
    databases,
    endpoints,
    events,
    history,
    hosts,
    looked_for,
    metrics,
    operations,
    organizations,
    projects,
    roles,
    schemas,
    snapshots,
    status,
    steering,
    users,
    webhooks,
)
from controlplane.api.auth import ApiKeyAuth
from controlplane.api.errors import install_error_handlers
from controlplane.api.openapi import DescribedApi

api = DescribedApi(
    title="Perch management API",
    version="2",
    auth=ApiKeyAuth(),
    docs_url=None,
    # `controlplane.api.document.views` serves the document.
    openapi_url=None,
)
install_error_handlers(api)
for resource in (
    *(projects, branches, history, schemas, snapshots, endpoints, metrics, operations, steering),
    *(events, roles, databases, api_keys, users, status, hosts, accounts, organizations),
    *(looked_for, consumption, webhooks),
):
    api.add_router("", resource.router)
