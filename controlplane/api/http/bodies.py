"""Parses the JSON bodies of requests. A body of a megabyte can have half a million values, and
validating these would take seconds of the one thread that serves all requests. So bodies with too
many values are refused before they are validated."""

import json
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser

# Values of a body on all levels together, several times as many as any request needs.
MAX_VALUES = 10_000


class TooManyValues(ValueError):
    """The body has more than MAX_VALUES values."""


class BoundedParser(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        return parsed(request.body)


def parsed(body: bytes) -> Any:
    """The value of the JSON text. Raises TooManyValues; ValueError or RecursionError if it is not
    JSON."""
    value = json.loads(body)
    level, count = [value], 0
    while level:
        count += len(level)
        if count > MAX_VALUES:
            raise TooManyValues
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict | list):
                inner += part.values() if isinstance(part, dict) else part
        level = inner
    return value
