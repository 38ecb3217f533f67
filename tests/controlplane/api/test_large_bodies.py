"""However many values a body has, its answer takes little time of the one thread of the API."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.api.http.field_errors import MAX_VALUES
from controlplane.api.router import api as described
from tests.controlplane.request_fields import METHODS, _shapes
from tests.support.waiting import load

Place = tuple[str, str, tuple[str, ...]]


def places(document: Any) -> Iterator[Place]:
    """Yield the method, the path, and the place in the body of every list and map."""
    for path, methods in document["paths"].items():
        for method in methods.keys() & set(METHODS):
            content = methods[method].get("requestBody", {}).get("content", {})
            for body in content.values():
                for place in _within(document, body["schema"]):
                    yield method, re.sub(r"{\w+}", "1", path), place


def _within(document: Any, schema: Any) -> Iterator[tuple[str, ...]]:
    for shape in _shapes(document, schema):
        for name, inner in shape.get("properties", {}).items():
            yield from ((name, *rest) for rest in _within(document, inner))
        if shape.get("type") == "array" or "additionalProperties" in shape:
            yield ()


def seconds(api: DjangoClient, place: Place, value: Any) -> tuple[int, float]:
    """Send the value at the place. Returns the status and the processor time of the answer."""
    method, path, names = place
    for name in reversed(names):
        value = {name: value}
    body = json.dumps(value, separators=(",", ":"))
    assert len(body) <= 1 << 20
    began = time.process_time()
    answer = api.generic(method, f"/api/v2{path}", body, content_type="application/json")
    return answer.status_code, time.process_time() - began


def test_a_body_of_too_many_values_is_not_validated(api: DjangoClient) -> None:
    found = list(places(described.get_openapi_schema()))
    assert ("post", "/webhooks", ("webhook", "event_types")) in found
    for place in found:
        values: list[Any] = [[1] * 500_000, [{}] * 300_000, {str(i): 1 for i in range(90_000)}]
        for value in values:
            status, took = seconds(api, place, value)
            assert (status, took < load()) == (413, True), (place, took)


@pytest.mark.parametrize("item", [1, {}, "x"])
def test_a_list_of_as_many_wrong_items_as_are_allowed_takes_little_time(
    api: DjangoClient, item: Any
) -> None:
    for place in places(described.get_openapi_schema()):
        status, took = seconds(api, place, [item] * (MAX_VALUES - 10))
        assert 400 <= status < 500, place
        assert took < load(), (place, took)
