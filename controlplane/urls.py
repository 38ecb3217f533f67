"""The API's URLs."""

from django.urls import path

from controlplane.api.document_views import docs, openapi_json, swagger_file
from controlplane.api.router import api
from controlplane.api.status import certificate_authority, healthz, healthz_details, livez, readyz
from controlplane.fleet.api import join_host

urlpatterns = [
    path("api/v2/openapi.json", openapi_json),
    path("api/v2/docs", docs),
    path("api/v2/docs/<str:name>", swagger_file),
    path("api/v2/", api.urls),
    path("livez", livez),
    path("readyz", readyz),
    path("healthz", healthz),
    path("healthz/details", healthz_details),
    path("hosts/join", join_host),
    path("certificate-authority.pem", certificate_authority),
]
