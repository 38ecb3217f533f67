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
