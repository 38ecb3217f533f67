"""Combines the routers of all resources into the API that `controlplane.urls` serves."""

from controlplane.api import (
    accounts,
    branches,
    catalog,
    endpoints,
    events,
    looked_for,
    masking,
    operations,
    organizations,
    projects,
    schemas,
    snapshots,
    status,
)
from controlplane.api.document.openapi import DescribedApi
from controlplane.api.http.auth import ApiKeyAuth
from controlplane.api.http.bodies import BoundedParser
from controlplane.api.http.errors import install_error_handlers
from controlplane.fleet import api as hosts
from controlplane.history import api as history
from controlplane.usage import consumption_api, metrics_api
from controlplane.webhooks import api as webhooks

api = DescribedApi(
    title="Perch management API",
    version="2",
    auth=ApiKeyAuth(),
    parser=BoundedParser(),
    docs_url=None,
    # `controlplane.api.document_views` serves the document.
    openapi_url=None,
)
install_error_handlers(api)
for router in (
    *(projects.router, branches.router, history.router, schemas.router, snapshots.router),
    masking.router,
    *(endpoints.router, metrics_api.router, operations.router, events.router),
    *(catalog.roles, catalog.databases, accounts.api_keys, organizations.users, status.router),
    *(hosts.router, accounts.router, organizations.router, looked_for.router),
    *(consumption_api.router, webhooks.router),
):
    api.add_router("", router)
