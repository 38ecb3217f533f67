"""Joins the resources to the one API that `controlplane.urls` serves."""

from ninja import NinjaAPI

from controlplane.api import api_keys, branches, endpoints, operations, projects, users
from controlplane.api.auth import ApiKeyAuth
from controlplane.api.errors import install_error_handlers

api = NinjaAPI(
    title="Perch management API",
    version="2",
    auth=ApiKeyAuth(),
    docs_url=None,
    openapi_url="/openapi.json",
)
install_error_handlers(api)
api.add_router("/projects", projects.router)
api.add_router("/projects/{project_id}/branches", branches.router)
api.add_router("/projects/{project_id}/endpoints", endpoints.router)
api.add_router("/projects/{project_id}/operations", operations.router)
api.add_router("/api_keys", api_keys.router)
api.add_router("", users.router)
