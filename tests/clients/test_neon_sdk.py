"""`@neon/sdk`, the successor of `@neondatabase/api-client`, unmodified."""

import json

import pytest

from tests.clients import nodejs
from tests.support.client import Client


def test_a_project_from_its_creation_to_its_deletion(node: None, alice: Client) -> None:
    ran = nodejs.script("neon_sdk.mjs", API_KEY=alice.key, API_URL=alice.api_url)
    assert ran.status == 0, ran.told
    seen = json.loads(ran.output)
    assert seen.pop("user").startswith("account-")
    kind, code, message = seen.pop("refused")
    assert (kind, code) == ("not_found", "NOT_OFFERED")
    assert "/advisors is not available here: this server analyses no databases; read" in message
    assert seen == {
        "projects": ["by sdk"],
        "regions": 1,
        "renamed": "renamed",
        "branch": [{"number": 1}],
        "slug": "before-the-change",
        "aborted": [True, "init"],
        "after_abort": [2, 2],
        "after_commit": 1,
        "committed": ["main", True],
        "replaced": [True, False],
        "copy": ["copy", False],
        "empty": [[], [], [], []],
        "archived": [422, "NOT_OFFERED"],
        "gone": "not_found",
    }


@pytest.mark.parametrize("key", ["perch_wrong"])
def test_a_wrong_key_is_reported(node: None, alice: Client, key: str) -> None:
    ran = nodejs.script("neon_sdk.mjs", API_KEY=key, API_URL=alice.api_url)
    assert ran.status != 0
    assert "NeonAuthError" in ran.told
