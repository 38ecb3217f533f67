"""Pages that were open before the worker stopped."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import opened
from tests.browser.looking import expect_accessible
from tests.browser.test_journey import assert_not_reloaded, mark, sign_in
from tests.support.processes import held_still
from tests.support.project import Project
from tests.support.stack import running_stack

# Milliseconds. The API reports a worker as missing after 5 s of silence; a console asks every 4 s.
MISSED = 30_000


@pytest.mark.thorough
def test_open_pages_say_that_the_worker_is_down_until_it_is_back(
    browser: Browser, state_dir: Path
) -> None:
    with running_stack(state_dir) as stack, opened(browser, stack.console_url) as page:
        shop = Project.create(stack, stack.client(), name="shop")
        sign_in(page, shop.client.key)
        page.goto(f"/projects/{shop.id}")
        other = page.context.new_page()
        other.goto(f"/projects/{shop.id}/operations")
        words = [each.locator("#service") for each in (page, other)]
        for each, word in zip((page, other), words, strict=True):
            mark(each)
            expect(word).to_be_empty()
        with held_still(stack, "worker"):
            asked = shop.client.post(shop.endpoint_path(rest="/suspend"))
            for word in words:
                expect(word).to_have_text(
                    "The worker of this service does not respond: "
                    "operations wait until it is back.",
                    timeout=MISSED,
                )
            expect_accessible(page)
        shop.done(asked)
        for each, word in zip((page, other), words, strict=True):
            expect(word).to_be_empty(timeout=MISSED)
            assert_not_reloaded(each)
