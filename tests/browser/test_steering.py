"""Watching, cancelling and retrying an operation, in a real browser."""

import re

from playwright.sync_api import Page, expect

from tests.browser.test_journey import assert_not_reloaded, mark, sign_in
from tests.support.project import Project
from tests.support.stack import Stack


def test_an_operation_is_cancelled_and_retried(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    sign_in(page, project.client.key)
    dialog = page.locator("dialog[open]")
    status = page.locator("#live > .head .state")

    with project.locked():
        suspend, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        # The operation's own address redirects to its run.
        page.goto(f"/projects/{project.id}/operations/{start['id']}")
        expect(page).to_have_url(re.compile(f"/runs/{start['chain_id']}#operation-{start['id']}$"))
        mark(page)
        expect(page.locator(".waterfall")).to_contain_text("Waiting for “Suspend endpoint”")
        expect(page.locator("#poll")).to_contain_text("in progress")

        # The page asks for confirmation; declining changes nothing.
        own = page.locator(f"[id='operation-{start['id']}'] tr.operation .word")
        cancel = page.locator(f"[id='cancel-{start['id']}']")
        cancel.click()
        dialog.get_by_role("button", name="Go back").click()
        expect(dialog).to_have_count(0)
        expect(own).to_have_text("Waiting")
        cancel.click()
        dialog.get_by_role("button", name="Cancel operation").dblclick()
        expect(own).to_have_text("Cancelled")
        expect(page.locator(".notice.success")).to_have_text(re.compile("is cancelled"))
        expect(page.locator(".notice.failure")).to_have_count(0)
        assert_not_reloaded(page)

    # The rest of its run continues, and the page shows it.
    other = page.locator(f"[id='operation-{suspend['id']}'] tr.operation")
    expect(other).to_contain_text("OK")
    expect(page.locator("#live")).to_have_attribute("data-mark", re.compile("."))
    assert project.client.ended(project.id, suspend["id"])["status"] == "finished"

    # A second press of the button before the first answer has no further effect.
    cancelled = page.url
    page.locator("#retry-run").dblclick()
    expect(page).not_to_have_url(re.compile(start["chain_id"]))
    expect(status).to_have_text("OK")
    anew = page.url.rpartition("/")[2]
    page.get_by_role("link", name=f"operation {start['id']}").click()
    expect(page).to_have_url(re.compile(re.escape(cancelled.partition("#")[0])))
    expect(page.locator(".facts")).to_contain_text(anew)
    retries = [one for one in project.operations() if one.get("retry_of")]
    assert [one["chain_id"] for one in retries] == [anew]
    assert project.sql("SELECT 1") == [(1,)]
