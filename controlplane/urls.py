"""The API's URLs."""

from collections.abc import Callable

from django.http import HttpResponse
from django.urls import path

from controlplane.api.http.auth import without_key
from controlplane.api.router import api, docs, openapi_json, swagger_file
from controlplane.api.status import certificate_authority, healthz, healthz_details, livez, readyz
from controlplane.fleet.api import join_host

WITHOUT_KEY: dict[str, Callable[..., HttpResponse]] = {
    "api/v2/openapi.json": openapi_json,
    "api/v2/docs": docs,
    "api/v2/docs/<str:name>": swagger_file,
    "hosts/join": join_host,
    "certificate-authority.pem": certificate_authority,
}
# Counted apart: wrong keys that are typed at the console come from the same address.
HEALTH_CHECKS: dict[str, Callable[..., HttpResponse]] = {
    "livez": livez,
    "readyz": readyz,
    "healthz": healthz,
    "healthz/details": healthz_details,
}
urlpatterns = [
    *(path(route, without_key(view)) for route, view in WITHOUT_KEY.items()),
    *(path(url, without_key(one, counted_as="health")) for url, one in HEALTH_CHECKS.items()),
    path("api/v2/", api.urls),
]
