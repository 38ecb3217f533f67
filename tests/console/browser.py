"""A browser without scripts, which sends forms as browsers do."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.test import Client

URL_ENCODED = "application/x-www-form-urlencoded"


class Browser(Client):
    """Django's own client would send every form as multipart. Here only those with a file are."""

    def post(  # type: ignore[override]
        self, path: str, data: Any = None, content_type: str = "", **named: Any
    ) -> Any:
        if content_type:
            return super().post(path, data, content_type, **named)
        fields: Mapping[str, Any] = data or {}
        if any(hasattr(value, "read") for value in fields.values()):
            return super().post(path, fields, **named)
        return super().post(path, urlencode(fields, doseq=True), URL_ENCODED, **named)
