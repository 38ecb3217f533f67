"""Connection strings: each is copied by its button, and then used by the client that it is for."""

import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import copied
from tests.browser.test_journey import sign_in
from tests.selection import first_of
from tests.support.project import Project
from tests.support.stack import Stack

QUERY = "SELECT 'reached ' || current_user"
REACHED = "reached neondb_owner"


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


def by_url(copied: str) -> str:
    with psycopg.connect(copied) as connection:
        return str(connection.execute(QUERY).fetchone()[0])  # type: ignore[index]


def by_psql(copied: str) -> str:
    command = [*shlex.split(copied), "-XAtc", QUERY]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout.strip() or ran.stderr


def by_psycopg(copied: str) -> str:
    named: dict[str, Any] = {}
    exec(copied, named)  # as pasted
    with named["connection"] as connection:
        return str(connection.execute(QUERY).fetchone()[0])


@pytest.mark.parametrize("pooled", first_of([False, True]), ids=["direct", "pooled"])
@pytest.mark.parametrize(
    ("label", "opening", "connect"),
    first_of(
        [
            ("psql", "psql 'postgresql://", by_psql),
            ("URL", "postgresql://", by_url),
            ("psycopg", "import psycopg", by_psycopg),
        ]
    ),
)
def test_the_copied_connection_string_connects(
    page: Page,
    shop: Project,
    label: str,
    opening: str,
    connect: Callable[[str], str],
    pooled: bool,
) -> None:
    sign_in(page, shop.client.key)
    page.goto(f"/projects/{shop.id}/endpoints/{shop.endpoint_id}/connect")
    shown = page.locator(".string code")
    page.get_by_label("For", exact=True).select_option(label)
    expect(shown).to_have_text(re.compile(f"^{opening}"))
    if pooled:
        page.get_by_label("Pooled").check()
        expect(shown).to_contain_text("-pooler")
    expect(shown).to_contain_text("********")

    page.locator(".string").get_by_role("button", name="Copy").click()
    string = copied(page)
    assert string.startswith(opening)
    assert ("-pooler" in string) == pooled
    assert connect(string) == REACHED
