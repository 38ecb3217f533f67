"""Following an operation, cancelling it and trying it again, in a real browser."""

import re

from playwright.sync_api import Page, expect

from tests.browser.test_journey import assert_not_reloaded, mark, sign_in
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import Stack


def test_an_operation_is_cancelled_and_tried_again(page: Page, stack: Stack) -> None:
    project = Project.create(stack, Client(stack.api_url, stack.new_key()), name="shop")
    sign_in(page, project.client.key)
    dialog = page.locator("dialog[open]")
    status = page.locator("#live > .head .state")

    with project.locked():
        suspend, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        page.goto(f"/projects/{project.id}/operations/{start['id']}")
        mark(page)
        expect(page.locator(".story")).to_contain_text("Waiting for “Suspend compute”")
        expect(page.locator("#poll")).to_contain_text("in progress")

        # Asked first; and who thinks better of it has changed nothing.
        page.locator("#cancel-operation").click()
        dialog.get_by_role("button", name="Go back").click()
        expect(dialog).to_have_count(0)
        expect(status).to_have_text("Scheduling")
        page.locator("#cancel-operation").click()
        dialog.get_by_role("button", name="Cancel operation").dblclick()
        expect(status).to_have_text("Cancelled")
        expect(page.locator(".notice.success")).to_have_text(re.compile("is cancelled"))
        expect(page.locator(".notice.failure")).to_have_count(0)
        assert_not_reloaded(page)

    # The rest of its request goes on, and the page with it.
    row = page.locator(".operations tbody tr").filter(has_text="Suspend compute")
    expect(row).to_contain_text("OK")
    expect(page.locator("#poll")).not_to_have_attribute("hx-trigger", re.compile(".*"))
    assert project.client.ended(project.id, suspend["id"])["status"] == "finished"

    # A second press of the button, before the first is answered, does nothing more.
    page.locator("#retry-operation").dblclick()
    expect(page).not_to_have_url(re.compile(start["id"]))
    expect(status).to_have_text("OK")
    anew = page.url.rpartition("/")[2]
    page.get_by_role("link", name=start["id"]).click()
    expect(page.locator(".facts")).to_contain_text(anew)
    retries = [one for one in project.operations() if one.get("retry_of")]
    assert [one["id"] for one in retries] == [anew]
    assert project.sql("SELECT 1") == [(1,)]
