"""Lighthouse rates six pages of the console."""

import os

import pytest

from tests.clients import nodejs
from tests.support import lighthouse
from tests.support.project import Project
from tests.support.stack import Stack

FAST_ENOUGH = 95


@pytest.mark.thorough
@pytest.mark.slow
def test_six_pages_are_quick_and_accessible(stack: Stack) -> None:
    """One test, because pages that are measured at the same time slow each other down."""
    chromium = lighthouse.chromium_path()
    try:
        lighthouse.install()
    except nodejs.NoNode as error:
        if os.environ.get("PERCH_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip(str(error))
    if chromium is None:
        assert os.environ.get("PERCH_REQUIRE_BROWSER") != "1", "no Chromium found"
        pytest.skip("no Chromium found")
    shop = Project.create(stack, stack.client(), name="shop")
    dev = shop.new_branch_id(name="dev", parent_id=shop.branch_id)
    shop.create_endpoint(dev)
    shop.sql("CREATE TABLE birds (id int PRIMARY KEY, name text)")
    scores = {
        name: lighthouse.rate(
            stack.console_url, path, shop.client.key, chromium, enough=FAST_ENOUGH
        )
        for name, path in lighthouse.pages(shop).items()
    }
    wrong = {
        name: str(one)
        for name, one in scores.items()
        if one.performance < FAST_ENOUGH or one.accessibility < 100
    }
    assert not wrong, wrong
