"""`@neondatabase/api-client`, the client that programs in TypeScript use, unmodified."""

import json

import pytest

from tests.clients import nodejs
from tests.support.client import Client


def test_a_project_from_its_creation_to_its_deletion(node: None, alice: Client) -> None:
    ran = nodejs.script("api_client.mjs", API_KEY=alice.key, API_URL=alice.api_url)
    assert ran.status == 0, ran.told
    seen = json.loads(ran.output)
    assert seen.pop("schema").strip()
    assert seen.pop("uri").startswith("postgresql://ann:")
    assert seen.pop("user").startswith("account-")
    assert seen.pop("expires").endswith("Z")
    assert seen == {
        "projects": ["by api-client"],
        "shared": [],
        "regions": 1,
        "organizations": 1,
        "renamed": "renamed",
        "branches": ["dev"],
        "annotation": {"made-by": "tests"},
        "count": 2,
        "cleared": None,
        "roles": ["ann", "neondb_owner"],
        "password_changed": True,
        "suspended": "idle",
        "timeout": 900,
        "endpoints": 2,
        "operations": 2,
        "reset": ["neondb_owner"],
        "keys": ["by api-client", "tests"],
        "revoked": True,
        "gone": 404,
    }


@pytest.mark.parametrize("key", ["", "perch_wrong"])
def test_a_wrong_key_is_reported(node: None, alice: Client, key: str) -> None:
    ran = nodejs.script("api_client.mjs", API_KEY=key or "none", API_URL=alice.api_url)
    assert ran.status != 0
    assert "401" in ran.told
