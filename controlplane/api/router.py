"""Combines the routers of all resources into the API that `controlplane.urls` serves, and has the
views of its document: `/api/v2/openapi.json`, and `/api/v2/docs`, on which Swagger UI shows it, as
django-ninja brings it. They need no authentication, and every caller gets the same."""

import json
from functools import cache
from pathlib import Path

import ninja
from django.core.exceptions import DisallowedHost
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.html import escape

from controlplane.api import (
    accounts,
    branches,
    catalog,
    endpoints,
    events,
    looked_for,
    operations,
    organizations,
    projects,
    schemas,
    snapshots,
    status,
)
from controlplane.api.document.openapi import ADDRESS, DescribedApi
from controlplane.api.http.auth import ApiKeyAuth
from controlplane.api.http.errors import install_error_handlers
from controlplane.api.http.field_errors import BoundedParser
from controlplane.api.http.routing import as_json
from controlplane.fleet import api as hosts
from controlplane.history import api as history
from controlplane.usage import api as usage
from controlplane.webhooks import api as webhooks

api = DescribedApi(
    title="Perch management API",
    version="2",
    auth=ApiKeyAuth(),
    parser=BoundedParser(),
    docs_url=None,
    # `openapi_json` serves the document.
    openapi_url=None,
)
install_error_handlers(api)
for router in (
    *(projects.router, branches.router, history.router, schemas.router, snapshots.router),
    *(endpoints.router, usage.metrics_router, operations.router, events.router),
    *(catalog.roles, catalog.databases, accounts.api_keys, organizations.users, status.router),
    *(hosts.router, accounts.router, organizations.router, looked_for.router),
    *(usage.router, webhooks.router),
):
    api.add_router("", router)


BASE = "/api/v2"
SWAGGER_UI = Path(ninja.__file__).parent / "static" / "ninja"
SWAGGER_FILES = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui-init.js": "text/javascript",
}
# Addresses are relative, since a reverse proxy may serve the API below a path of its own.
PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>{escape(api.title)}</title>
  <link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
  <script type="application/json" id="swagger-settings">
    {{"url": "openapi.json", "layout": "BaseLayout", "deepLinking": true}}
  </script>
  <div id="swagger-ui"></div>
  <script src="docs/swagger-ui-bundle.js"></script>
  <script src="docs/swagger-ui-init.js"></script>
</body>
</html>
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def openapi_json(request: HttpRequest) -> HttpResponse:
    # In pieces, so that the answers of clients that read slowly share almost all of it.
    before, after = _document()
    response = HttpResponse(before, content_type="application/json; charset=utf-8")
    response.write(json.dumps(_address(request))[1:-1])
    response.write(after)
    return response


def docs(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(PAGE, content_type="text/html; charset=utf-8")
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def swagger_file(request: HttpRequest, name: str) -> HttpResponse:
    """A file that the page loads. Raises Http404 for any other name."""
    if name not in SWAGGER_FILES:
        raise Http404
    body = _swagger_file(name)
    headers = {"Cache-Control": "public, max-age=86400"}
    return HttpResponse(body, content_type=SWAGGER_FILES[name], headers=headers)


@cache
def _swagger_file(name: str) -> bytes:
    return (SWAGGER_UI / name).read_bytes()


@cache
def _document() -> list[bytes]:
    return as_json(api.get_openapi_schema()).split(ADDRESS.encode())


def _address(request: HttpRequest) -> str:
    """The API's address as the caller used it, or only its path if the Host header is not
    allowed."""
    try:
        return request.build_absolute_uri(BASE)
    except DisallowedHost:
        return BASE
