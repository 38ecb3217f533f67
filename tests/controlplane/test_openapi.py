"""What the API's document says about every route."""

from typing import Any

import pytest
from django.test import Client as DjangoClient


@pytest.fixture
def document(client: DjangoClient) -> Any:
    return client.get("/api/v2/openapi.json").json()


def test_every_change_takes_an_idempotency_key_and_no_read_does(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names = [one["name"] for one in operation.get("parameters", ())]
            expected = method in ("post", "patch", "delete")
            assert names.count("Idempotency-Key") == expected, (method, path)
            good = {s: a for s, a in operation["responses"].items() if s.startswith("2")}
            assert good
            for answer in good.values():
                assert ("Idempotent-Replayed" in answer.get("headers", {})) == expected


def test_every_route_lists_its_refusals(document: Any) -> None:
    assert document["components"]["schemas"]["Error"]["required"] == [
        *("request_id", "code", "message")
    ]
    for methods in document["paths"].values():
        for operation in methods.values():
            assert {"401", "429", "500", "503"} <= operation["responses"].keys()
            assert "Retry-After" in operation["responses"]["429"]["headers"]


def test_the_document_describes_the_limits_of_keys(document: Any) -> None:
    wanted = document["components"]["schemas"]["CreateApiKey"]["properties"]
    for name in ("project_id", "read_only", "expires_at"):
        assert wanted[name]["description"], name
