"""`/api/v2/openapi.json` and `/api/v2/docs`. They need no authentication, and every caller gets the
same."""

import json
from functools import cache

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.utils.html import escape

from controlplane.api.document.page import page, policy
from controlplane.api.openapi import ADDRESS
from controlplane.api.rendering import as_json
from controlplane.api.router import api

BASE = "/api/v2"


def openapi_json(request: HttpRequest) -> HttpResponse:
    body = _document().replace(ADDRESS, json.dumps(_address(request))[1:-1])
    return HttpResponse(body, content_type="application/json; charset=utf-8")


def docs(request: HttpRequest) -> HttpResponse:
    body = page().replace(ADDRESS, escape(_address(request)))
    response = HttpResponse(body, content_type="text/html; charset=utf-8")
    response.headers["Content-Security-Policy"] = policy()
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


@cache
def _document() -> str:
    return as_json(api.get_openapi_schema()).decode()


def _address(request: HttpRequest) -> str:
    """The API's address as the caller used it, or only its path if the Host header is not
    allowed."""
    try:
        return request.build_absolute_uri(BASE)
    except DisallowedHost:
        return BASE
