"""The API's addresses."""

from django.urls import path

from controlplane.api.health import healthz
from controlplane.api.router import api

urlpatterns = [path("api/v2/", api.urls), path("healthz", healthz)]
